"""Say what this machine is, and what it can do natively.

Ask `supports("BF16")` before relying on a thing: the answer carries its reason. Any GPU
can also be *described*, `gpu("T4")`, and asked the same without being present.
Native means that the hardware's own units execute the format: a T4 emulates BF16,
although `torch.cuda.is_bf16_supported()` says True there.

Sources: the "Datatype and hardware support matrix" of NVIDIA's Transformer Engine;
TensorRT's support matrix for Turing; PyTorch's `sdp_utils.cpp` for attention.
"""

import ctypes
import functools
import importlib.metadata
import importlib.util
import numbers
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from helpers._arguments import Size, check, checked, quoted

FORMATS = ("FP64", "FP32", "TF32", "BF16", "FP16", "FP8", "MXFP8", "FP4")
ATTENTION = tuple(f"{kind} attention" for kind in "flash efficient cuDNN math".split())
CAPABILITIES = (*FORMATS, *ATTENTION, "torch.compile", "CUDA graphs", "kernels")

# Each generation's first compute capability, newest first; 13.0 is not known yet.
_GENERATIONS = {"": (13, 0), "Blackwell": (10, 0), "Hopper": (9, 0), "Ada": (8, 9)}
_GENERATIONS |= {"Ampere": (8, 0), "Turing": (7, 5), "Volta": (7, 0), "Pascal": (6, 0)}
_GENERATIONS |= {"Maxwell": (5, 0), "Kepler": (3, 0)}
# The first generation with Tensor Cores for a format, or with a kernel for a backend.
_FIRST = {"FP16": "Volta", "TF32": "Ampere", "BF16": "Ampere", "FP8": "Ada"}
_FIRST |= {"MXFP8": "Blackwell", "FP4": "Blackwell", "CUDA graphs": "Maxwell"}
_FIRST |= {"flash attention": "Ampere", "cuDNN attention": "Ampere"}
_FIRST |= {"efficient attention": "Maxwell"}
# CPU instructions that compute in the format, as Linux and torch.cpu spell them.
_CPU_INSTRUCTIONS = {"BF16": {"avx512_bf16", "amx_bf16", "amx_tile", "bf16"}}
_CPU_INSTRUCTIONS["FP16"] = {"avx512_fp16", "amx_fp16", "asimdhp", "fp16_arith"}
_CONTAINER = Path("/sys/fs/cgroup")  # whose limit /proc/meminfo does not show
_CPU_BUILD = "torch is the build for CPUs alone; install a CUDA build"
# Compute capability, SMs, GiB: NVIDIA's data sheets and architecture white papers. Of a
# card that comes with two sizes of memory, the smaller.
DATA_SHEETS = {
    "V100": ((7, 0), 80, 16),
    "T4": ((7, 5), 40, 16),
    "RTX 2080": ((7, 5), 46, 8),
    "A100": ((8, 0), 108, 40),
    "RTX 3060": ((8, 6), 28, 12),
    "RTX 3090": ((8, 6), 82, 24),
    "L4": ((8, 9), 58, 24),
    "RTX 4090": ((8, 9), 128, 24),
    "H100": ((9, 0), 132, 80),
    "H200": ((9, 0), 132, 141),
    "B200": ((10, 0), 148, 180),
    "RTX 5090": ((12, 0), 170, 32),
}


KINDS = ("CNN", "transformer", "other")
SHAPES = ("fixed", "varying")
BATCHES = ("small", "large")
_PYTORCH = "https://docs.pytorch.org/docs/stable/"
_DOCS = {
    "compile": f"{_PYTORCH}torch.compiler_faq.html",
    "graphs": f"{_PYTORCH}notes/cuda.html#cuda-graphs",
    "cudnn": f"{_PYTORCH}backends.html#torch-backends-cudnn",
    "tf32": f"{_PYTORCH}notes/cuda.html",
    "attention": f"{_PYTORCH}nn.attention.html",
    "layout": "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    "torchao": "https://docs.pytorch.org/ao/stable/",
    "formats": "https://docs.nvidia.com/deeplearning/transformer-engine/",
}


@checked
@dataclass(frozen=True)
class Support:
    """An answer, true or false, and its reason as one sentence."""

    ok: bool
    why: str

    def __bool__(self) -> bool:
        return self.ok


@checked
@dataclass(frozen=True, repr=False)
class Machine:
    """What one machine is. None where a thing is missing; its text is a summary."""

    device: Literal["cuda", "mps", "cpu"]  # where tensors run
    name: str
    capability: tuple[int, int] | None = None  # of NVIDIA GPUs only
    sms: int | None = None
    memory_bytes: Size = 0  # the GPU's, else the RAM
    driver: str | None = None
    torch_version: str = torch.__version__
    cuda_version: str | None = None
    cudnn_version: str | None = None
    triton_version: str | None = None
    cxx_compiler: str | None = None  # its name, such as "g++"
    cpu_threads: int = 1
    python: str = platform.python_version()
    kernels: tuple[str, ...] = ()  # what torch was built for: "sm_90", "compute_90"
    cpu_features: tuple[str, ...] = ()  # the _CPU_INSTRUCTIONS that are present
    python_headers: bool = True  # Python.h, which compiled code includes
    gpu_problem: str = ""  # why a GPU that is present cannot be used
    described: bool = False  # only described, not present

    @property
    def generation(self) -> str:
        """The GPU's architecture, such as "Hopper"; "" where it is not known."""
        reached = (n for n, cc in _GENERATIONS.items() if (self.capability or ()) >= cc)
        return next(reached, "")

    def __repr__(self) -> str:
        return _summary(self)


@functools.cache
def detect() -> Machine:
    """Return the machine that runs this process. Never raises; looks only once.

    A GPU counts if one tiny operation runs on it. An old driver, or a torch build with
    no kernels for the GPU, makes `device` "cpu" and `gpu_problem` the reason, so that
    code which follows `device` always runs. Initialises CUDA.
    """
    # torch also warns of what gpu_problem reports: keep the words, silence the warning.
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        host, found, problem = _host(), {}, ""
        try:
            if torch.cuda.is_available():
                found = {"device": "cuda", "name": "the GPU"}
                card = torch.cuda.get_device_properties(torch.cuda.current_device())
                found |= {"name": card.name, "memory_bytes": card.total_memory}
                found |= {"sms": card.multi_processor_count}
                if not torch.version.hip:
                    found |= {"capability": (card.major, card.minor)}
            elif torch.backends.mps.is_available():
                found = {"device": "mps", "name": f"an Apple {platform.machine()} GPU"}
            if found:
                (torch.ones(1, device=found["device"]) + 1).item()
        except Exception as error:  # whatever a broken driver raises, the CPU is left
            gap = _kernel_gap(found.get("capability"), host["kernels"])
            problem = f"{found.get('name', 'the GPU')}: {gap or _gist(error)}"
            found = {}
    if host["driver"] and not found and not problem:
        problem = "it is hidden (CUDA_VISIBLE_DEVICES?) or its driver is too old"
        problem = _gist(warned[-1].message) if warned else problem
        problem = problem if host["kernels"] else _CPU_BUILD
    return Machine(**(host | found), gpu_problem=problem)


def gpu(name: str, kernels: Iterable[str] | None = None) -> Machine:
    """Describe a GPU that need not be present, with the torch build that is.

    Args:
        name: "T4", "RTX 5090", …; upper or lower case.
        kernels: architectures of another torch build, such as ("sm_75", "compute_90").

    Raises:
        ValueError: for any other name; it lists those that are accepted.
    """
    known = {sheet.casefold(): sheet for sheet in DATA_SHEETS}
    sheet = known.get(str(name).strip().casefold())
    if sheet is None:
        raise ValueError(
            f"no data sheet for {quoted(name)}; have {', '.join(DATA_SHEETS)}"
        )
    capability, sms, gib = DATA_SHEETS[sheet]
    check("kernels", kernels, Iterable[str] | None)
    facts = {"capability": capability, "sms": sms, "memory_bytes": gib << 30}
    facts |= {} if kernels is None else {"kernels": tuple(kernels)}
    facts |= {"driver": None, "gpu_problem": "", "described": True}
    return replace(detect(), device="cuda", name=f"NVIDIA {sheet}", **facts)


def supports(what: str, machine: Machine | None = None) -> Support:
    """Answer whether the machine (None: this one) can do `what`, and why.

    `what` is one of `CAPABILITIES`. "kernels" asks whether this torch build has code
    for the GPU. "torch.compile" is a cheap static check of versions and compilers, not
    a compilation. Of a described GPU, only the compute capability is judged.

    Raises:
        ValueError: for an unknown `what`; it lists those that are accepted.
        TypeError: if `machine` is no Machine.
    """
    machine = describe(machine)
    if not isinstance(what, str) or what not in CAPABILITIES:
        raise ValueError(
            f"cannot judge {quoted(what)}; ask for {', '.join(CAPABILITIES)}"
        )
    if what == "kernels":
        gap = machine.gpu_problem or _kernel_gap(machine.capability, machine.kernels)
        return Support(not gap, gap or "this torch build has kernels for this device")
    if what == "torch.compile":
        return _compile_support(machine)
    if what == "math attention":
        return Support(True, "math attention is made of ordinary operations")
    if machine.capability is None:
        return _support_without_nvidia(what, machine)
    return _nvidia_support(what, machine)


def native_formats(machine: Machine | None = None) -> tuple[str, ...]:
    """Return the names in `FORMATS` that the machine executes without emulation."""
    return tuple(what for what in FORMATS if supports(what, machine))


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options
) -> dict[str, Support]:
    """Try each attention backend on these inputs; return which ran, and why not.

    A refusal's reason is PyTorch's own, which it gives in warnings. Each is run once,
    without gradients: with them, some refuse more.

    Args:
        query, key, value: (batch, heads, tokens, head dimension).
        options: further arguments of
            ``torch.nn.functional.scaled_dot_product_attention``.

    Returns:
        "flash", "efficient", "cuDNN" and "math" → ``Support``.

    Raises:
        TypeError, ValueError: the inputs are not of that form (without it, "math" may
            still broadcast them), or not even "math" can take them.
        torch.OutOfMemoryError: "math" does not fit into the memory.
    """
    _check_attention(query, key, value, options)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    answers, sdpa = {}, torch.nn.functional.scaled_dot_product_attention
    for kind in (what.removesuffix(" attention") for what in ATTENTION):
        name = "MATH" if kind == "math" else f"{kind.upper()}_ATTENTION"
        with warnings.catch_warnings(record=True) as said, torch.no_grad():
            warnings.simplefilter("always")
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    output = sdpa(query, key, value, **options)
                if output.is_cuda:
                    torch.cuda.synchronize()  # a failure shows here, not later
                answers[kind] = Support(True, "it ran")
            except torch.OutOfMemoryError:
                raise
            except TypeError as error:  # an option is of another kind
                raise TypeError(f"{_gist(error)} (given {quoted(options)})") from error
            except RuntimeError as error:
                why = _refusal(kind, [str(warning.message) for warning in said])
                if kind == "math":  # if it cannot, nothing can
                    given = f"{tuple(query.shape)}, {query.dtype}, {quoted(options)}"
                    raise ValueError(
                        f"cannot attend: {_gist(error)} (given {given})"
                    ) from error
                if not why and query.device.type == "cpu" and kind != "flash":
                    why = f"{kind} attention has no kernel for a CPU"
                answers[kind] = Support(False, why or _gist(error))
    return answers


def _check_attention(query, key, value, options: dict) -> None:
    for x in (query, key, value):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"need three tensors, got {quoted(x)}")
    shapes = [tuple(x.shape) for x in (query, key, value)]
    alike = {(x.dtype, x.device, x.shape[:1], x.dim()) for x in (query, key, value)}
    if len(alike) > 1 or query.dim() != 4 or query.shape[3] != key.shape[3]:
        kinds = [(str(x.dtype), str(x.device)) for x in (query, key, value)]
        raise ValueError(
            "need (batch, heads, tokens, head dimension), query, key and value of one "
            f"dtype, device, batch and head dimension, got {shapes}, {kinds}"
        )
    grouped = options.get("enable_gqa") and not shapes[0][1] % max(shapes[1][1], 1)
    if shapes[1][1:3] != shapes[2][1:3] or not (
        grouped or shapes[0][1] == shapes[1][1]
    ):
        raise ValueError(f"keys and values need one head per query head, got {shapes}")
    if options.get("is_causal") and options.get("attn_mask") is not None:
        raise ValueError("is_causal=True and an attn_mask: give one of them")


def _refusal(kind: str, said: list[str]) -> str:
    """Return why a backend refused: the warning after the one that names it."""
    heading = re.compile(r"(.+) kernel not used because", re.IGNORECASE)
    named = ""
    for words in said:
        if found := heading.match(words):
            named = found[1].casefold()
        elif kind.casefold() in named:
            return re.split(r" \((?:Triggered|function)", words)[0]
    return ""


@checked
@dataclass(frozen=True)
class Advice:
    """One thing to do for speed, the reason, and where that is documented."""

    topic: str
    do: str
    why: str
    source: str


@checked
@dataclass(frozen=True)
class Recommendation:
    """What to try first on a machine; `options` are those of `optimizing.Plan`."""

    advice: tuple[Advice, ...]
    options: dict

    def __repr__(self) -> str:
        return "\n".join(f"{a.topic:<16}{a.do}: {a.why}" for a in self.advice)


def recommend(
    kind: str = "transformer",
    shapes: str = "fixed",
    batch: str = "large",
    machine: Machine | None = None,
) -> Recommendation:
    """Recommend what to try first. It is a start: only measuring decides.

    Args:
        kind: one of `KINDS` of model.
        shapes: "fixed" or "varying", of the inputs.
        batch: "small" if launching takes longer than computing, else "large".
        machine: None for this one.

    Raises:
        ValueError: an argument is none of these; the message lists them.
    """
    here = describe(machine)
    asked = (
        ("kind", kind, KINDS),
        ("shapes", shapes, SHAPES),
        ("batch", batch, BATCHES),
    )
    for name, value, accepted in asked:
        if not isinstance(value, str) or value not in accepted:
            raise ValueError(
                f"{name}={quoted(value)}: give one of {', '.join(accepted)}"
            )
    advice, options = [_precision(here)], {"precision": _best_format(here)}
    advice += [_strict_precision(here)]
    if kind == "CNN":
        advice.append(_layout(here))
        options["channels_last"] = True
    if kind == "transformer":
        advice.append(_attention_advice(here))
    compiles = supports("torch.compile", here)
    launches = batch == "small" and shapes == "fixed" and supports("CUDA graphs", here)
    if not compiles:
        advice.append(
            Advice("torch.compile", "leave it", compiles.why, _DOCS["compile"])
        )
    else:
        mode = "reduce-overhead" if launches else "default"
        options["compile"] = mode
        do, why = f'mode="{mode}"', "it fuses what is memory-bound"
        if launches:
            why = "it fuses, and one launch replaces many"
        if shapes == "varying":
            do, options["dynamic"] = "dynamic=True", True
            why = "one graph for all sizes; without it each new one may compile"
        if here.capability and here.capability < _GENERATIONS["Ampere"]:
            why += "; from torch 2.7 on its own products leave these Tensor Cores idle"
        advice.append(Advice("torch.compile", do, why, _DOCS["compile"]))
    if supports("CUDA graphs", here):
        do = "yes, also where the model does not compile" if launches else "no"
        why = "launching is what takes the time"
        if not launches:
            why = (
                "each shape needs a graph" if shapes == "varying" else "the GPU is busy"
            )
        advice.append(Advice("CUDA graph", do, why, _DOCS["graphs"]))
    if kind == "CNN" and here.device == "cuda":
        do = "try it, with few shapes" if shapes == "fixed" else "no"
        why = "each new shape costs a search, and few layers gain"
        advice.append(Advice("cudnn.benchmark", do, why, _DOCS["cudnn"]))
    narrower = [what for what in ("FP8", "FP4") if supports(what, here)]
    if narrower and kind != "CNN":
        why = f"{here.generation} multiplies them natively; needs torchao, and a check"
        advice.append(Advice("beyond", " and ".join(narrower), why, _DOCS["torchao"]))
    return Recommendation(tuple(advice), options)


def _best_format(here: Machine) -> str:
    return next((f for f in ("BF16", "FP16") if supports(f, here)), "FP32")


def _precision(here: Machine) -> Advice:
    best = _best_format(here)
    if best == "FP32":
        return Advice("precision", "FP32", supports("FP16", here).why, _DOCS["formats"])
    why = f"native; {supports('BF16', here).why}" if best == "FP16" else "native"
    both = best == "BF16" and supports("FP16", here)
    if both:
        best = "BF16, or FP16 where nothing overflows"
        why = "both are native; FP16 rounds 8 times finer, BF16 has FP32's range"
    return Advice("precision", best, why, _DOCS["formats"])


def _strict_precision(here: Machine) -> Advice:
    tf32 = supports("TF32", here)
    do, why = "FP32", "there is nothing between it and 16 bits"
    if tf32:
        do, why = "TF32", "the Tensor Cores' way to multiply FP32; convolutions use it"
    return Advice("if 16 bits fail", do, why, _DOCS["tf32"])


def _layout(here: Machine) -> Advice:
    why = "Tensor Cores read convolutions that way"
    if here.device == "cpu":
        why = "oneDNN's convolutions need fewer conversions"
    elif not supports("FP16", here):
        why = "costs nothing to try; without Tensor Cores it gains little"
    return Advice("memory layout", "channels_last", why, _DOCS["layout"])


def _attention_advice(here: Machine) -> Advice:
    fused = [kind.split()[0] for kind in ATTENTION[:3] if supports(kind, here)]
    do = "scaled_dot_product_attention"
    why = (
        f"fused backends here: {', '.join(fused)}" if fused else "math alone runs here"
    )
    return Advice("attention", do, why, _DOCS["attention"])


def free_bytes(machine: Machine | None = None) -> int:
    """Return the bytes that are free now: the GPU's, else the RAM that is available.

    Blocks that PyTorch keeps for reuse count as free, or a cell that runs again would
    see less. A described GPU has 90 % free. Where the system gives no figure for
    available RAM (macOS), it is half of the RAM.
    """
    machine = describe(machine)
    if machine.described:
        return machine.memory_bytes * 9 // 10
    if machine.device == "cuda":
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + kept
    return _ram_bytes()[1]


def fit(wanted_bytes: float, share: float = 0.5, machine: Machine | None = None) -> int:
    """Return the bytes a workload may take: what it wants, or a share of what is free.

    `wanted_bytes` is 0 or more (inf takes the whole share), `share` in (0, 1].

    Raises:
        ValueError: for anything else, NaN too.
    """
    numbers_ = [x for x in (wanted_bytes, share) if not isinstance(x, bool)]
    real = len(numbers_) == 2 and all(isinstance(x, numbers.Real) for x in numbers_)
    if not real or not wanted_bytes >= 0 or not 0 < share <= 1:
        got = f"{wanted_bytes!r} and {share!r}"
        raise ValueError(f"need bytes of 0 or more and a share in (0, 1], got {got}")
    return int(min(wanted_bytes, share * free_bytes(machine)))


def describe(machine: Machine | None = None) -> Machine:
    """Return the machine (None: this one); its text is the summary to show first."""
    if machine is not None and not isinstance(machine, Machine):
        raise TypeError(f'need a Machine, such as gpu("T4"), got {quoted(machine)}')
    return detect() if machine is None else machine


def label(machine: Machine | None = None) -> str:
    """Return one line for chart titles, such as "NVIDIA H200 · torch 2.11.0"."""
    machine = describe(machine)
    name = machine.name + " (described)" * machine.described
    if machine.device == "cpu":
        name = f"CPU, {machine.cpu_threads} thread" + "s" * (machine.cpu_threads != 1)
    return f"{name} · torch {machine.torch_version.split('+')[0]}"


def _instead(machine: Machine) -> str:
    """Say what is here in place of an NVIDIA GPU."""
    if machine.device != "cpu":
        return f"this machine has {machine.name}"
    problem = machine.gpu_problem and f" that torch can use ({machine.gpu_problem})"
    return f"this machine has no GPU{problem}"


def _support_without_nvidia(what: str, machine: Machine) -> Support:
    """Judge what runs on a CPU, on an Apple GPU, or on an AMD GPU (device "cuda")."""
    can = {"cpu": {"FP64"}, "mps": {"FP16"}}
    can["cuda"] = {"FP64", "FP16", "BF16", "CUDA graphs"}
    if what == "FP32" or what in can[machine.device]:
        return Support(True, f"this {machine.device} device has {what} of its own")
    if machine.device == "cpu" and what == "flash attention":
        return Support(True, "flash attention on a CPU is the CPU's own kernel")
    if machine.device == "cpu" and what in _CPU_INSTRUCTIONS:
        found = sorted(_CPU_INSTRUCTIONS[what].intersection(machine.cpu_features))
        if found:
            return Support(True, f"this CPU has instructions for {what}: {found[0]}")
        why = f"this CPU has no {what} instructions, so PyTorch goes through FP32"
        return Support(False, why)
    if what in ("FP64", "BF16"):
        return Support(False, f"{what} is missing on Apple GPUs, or on some of them")
    first = {"Maxwell": "GPU"}.get(_FIRST[what], f"{_FIRST[what]} GPU or newer")
    verb = "need" if what == "CUDA graphs" else "needs"
    return Support(False, f"{what} {verb} an NVIDIA {first}; {_instead(machine)}")


def _nvidia_support(what: str, machine: Machine) -> Support:
    cc, first, note = machine.capability, _FIRST.get(what, "Kepler"), ""
    if cc < _GENERATIONS[first]:
        instead = "PyTorch emulates it" if what == "BF16" else f"{first} was the first"
        units = "Tensor Cores" if what in FORMATS else "kernel"
        return Support(False, f"{machine.generation} has no {what} {units}; {instead}")
    if first == "Blackwell" and cc[0] == 11:
        return Support(False, f"no source says that compute capability 11 has {what}")
    if first == "Blackwell" and cc[0] == 12:
        note = ", but fewer libraries use it than on compute capability 10"
    elif what == "FP64" and cc not in ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0)):
        note = ", at a small fraction of the speed of FP32"
    elif what == "efficient attention" and cc < (8, 0):
        note = ", in FP16 and FP32 only"
    elif what == "cuDNN attention" and not (machine.cudnn_version or machine.described):
        return Support(False, "cuDNN attention needs cuDNN, and torch finds none")
    elif what == "cuDNN attention":
        promoted = cc[0] in (9, 10) and _numbers(machine.torch_version) >= (2, 11)
        note = ", as PyTorch's first choice" if promoted else ", on request only"
    verb = "executes" if what in FORMATS else "runs"
    return Support(True, f"{machine.name} {verb} {what}{note}")


def _compile_support(machine: Machine) -> Support:
    cc, release = machine.capability, _numbers(machine.torch_version)
    newest_python = 13 if release < (2, 10) else 14 if release < (2, 15) else 15
    problem = ""
    if cc and cc < _GENERATIONS["Volta"]:
        problem = f"Triton needs a Volta GPU or newer; this is {machine.generation}"
    elif machine.device == "mps":
        problem = "torch.compile for Apple GPUs is a prototype, left out here"
    elif machine.described:
        pass
    elif _numbers(machine.python)[:2] > (3, newest_python):
        problem = f"this torch compiles up to Python 3.{newest_python}"
    elif machine.device == "cuda" and machine.triton_version is None:
        problem = "Triton is not installed (for Windows there is triton-windows)"
    elif machine.cxx_compiler is None:  # for CPU kernels, and for Triton's launchers
        problem = "there is no C++ compiler (g++; clang++ on macOS; cl on Windows)"
    elif not machine.python_headers:
        problem = "Python.h is missing (on Debian it comes with python3-dev)"
    good = "a static check finds nothing missing (nothing was compiled)"
    if machine.described:
        good = f"Triton compiles for {machine.generation}"
    if cc and cc < _GENERATIONS["Ampere"]:
        good += "; from torch 2.7 on, Triton leaves these Tensor Cores idle"
    return Support(not problem, problem or good)


def _kernel_gap(capability: tuple[int, int] | None, kernels: tuple[str, ...]) -> str:
    """Return "" if code for one of `kernels` runs on the GPU, else what to install.

    Machine code, sm_86, runs on 8.6 and later minor versions; PTX, compute_86, on all
    later GPUs; with a final "a" either runs on that capability alone, with "f" on later
    minor versions (CUDA C++ Programming Guide, "Compute Capabilities").
    """
    if capability is None:
        return ""
    names = re.findall(r"(\w+)_(\d+)(\d)(\w?)", " ".join(kernels))
    for kind, major, minor, tie in names:
        built = (int(major), int(minor))
        minor_later = capability[0] == built[0] and tie != "a"
        any_later = kind == "compute" and not tie
        if capability == built or (capability > built and (minor_later or any_later)):
            return ""
    if not kernels:
        return _CPU_BUILD
    remedy = "install an official CUDA build of torch"
    if capability < (7, 5):
        remedy = "install torch 2.14 or older as built for CUDA 12.6 (cu126)"
    elif capability >= (10, 0):
        remedy = "install torch 2.8 or newer"
    have = f"this torch build has kernels for {' '.join(kernels)}"
    return f"{have}, none for {capability[0]}.{capability[1]}; {remedy}"


def _host() -> dict:
    """Return the Machine fields of this computer and torch build, its GPU left out."""
    cpuinfo = _attempt(Path("/proc/cpuinfo").read_text, "")
    model = re.search(r"model name\s*: (.+)", cpuinfo)
    known = _attempt(lambda: torch.cpu.get_capabilities(), {})  # in newer torch only
    features = set(cpuinfo.split()) | {name for name in known if known[name]}
    features &= _CPU_INSTRUCTIONS["BF16"] | _CPU_INSTRUCTIONS["FP16"]
    cudnn = _attempt(torch.backends.cudnn.version)
    if cudnn:  # 92400 is 9.24.0, 8907 is 8.9.7
        major, rest = divmod(cudnn, 10000 if cudnn >= 90000 else 1000)
        cudnn = f"{major}.{rest // 100}.{rest % 100}"
    triton = None
    if _attempt(lambda: importlib.util.find_spec("triton")):
        # Some builds of Triton are distributed under another name than "triton".
        triton = _attempt(lambda: importlib.metadata.version("triton"), "present")
    # Inductor takes $CXX, else exactly these (torch/_inductor/cpp_builder.py).
    cxx = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    cxx = (os.environ.get("CXX", cxx).split() or [""])[0]
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    smi = functools.partial(subprocess.run, capture_output=True, text=True, timeout=20)
    return {
        "device": "cpu",
        "name": model[1] if model else platform.processor() or platform.machine(),
        "memory_bytes": _ram_bytes()[0],
        "driver": _attempt(lambda: smi(ask, check=True).stdout.split()[0]),
        "cuda_version": torch.version.cuda,
        "cudnn_version": cudnn,
        "triton_version": triton,
        "cxx_compiler": Path(cxx).name if shutil.which(cxx) else None,
        "cpu_threads": torch.get_num_threads(),
        # Before torch 2.14, get_arch_list() is empty where there is no GPU.
        "kernels": tuple(_attempt(lambda: torch._C._cuda_getArchFlags().split(), ())),
        "cpu_features": tuple(sorted(features)),
        "python_headers": Path(f"{sysconfig.get_path('include')}/Python.h").exists(),
    }


def _ram_bytes() -> tuple[int, int]:
    """Return total and available RAM in bytes, within a container's limit if any."""
    memory = _attempt(Path("/proc/meminfo").read_text, "")
    kib = {name: int(size) for name, size in re.findall(r"(\w+): +(\d+) kB", memory)}
    total, free = kib.get("MemTotal", 0) << 10, kib.get("MemAvailable", 0) << 10
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its size, total, available
        _attempt(lambda: ctypes.windll.kernel32.GlobalMemoryStatusEx(status))
        total, free = status[1], status[2]
    elif not total:
        pages = _attempt(lambda: os.sysconf("SC_PHYS_PAGES"), 0)
        total = pages * _attempt(lambda: os.sysconf("SC_PAGE_SIZE"), 0)
        free = total // 2
    limit = _attempt(lambda: int((_CONTAINER / "memory.max").read_text()), total)
    if limit < total:
        used = _attempt(lambda: int((_CONTAINER / "memory.current").read_text()), 0)
        counts = _attempt((_CONTAINER / "memory.stat").read_text, "")
        cache = re.search(r"inactive_file (\d+)", counts)  # given up on demand
        used -= int(cache[1]) if cache else 0
        total, free = limit, min(free, max(limit - used, 0))
    return total, free


def _attempt(look: Callable, otherwise: object = None) -> object:
    """Return look(), or `otherwise` if it fails: describing a machine never raises."""
    try:
        return look()
    except Exception:
        return otherwise


def _gist(error: object) -> str:
    """Return the first sentence of a message, without the folders of any path."""
    sentence = re.split(r"\. |\n", str(error))[0] or type(error).__name__
    return re.sub(r"\S*[/\\]", "", sentence)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _summary(machine: Machine) -> str:
    """Lay a machine out as aligned lines of at most 88 columns, without any path."""
    present = " (described, not present)" if machine.described else ""
    rows = {"device": f"{machine.device}, {machine.name}{present}"}
    if machine.gpu_problem:
        rows["GPU, not used"] = machine.gpu_problem
    if machine.capability:
        major, minor = machine.capability
        rows["generation"] = f"{machine.generation}, compute capability {major}.{minor}"
        rows["SMs"] = str(machine.sms)
    rows["memory"] = f"{machine.memory_bytes / 2**30:.1f} GiB"
    rows["torch"] = f"{machine.torch_version}, Python {machine.python}"
    rows |= {"driver": machine.driver, "CUDA": machine.cuda_version}
    rows |= {"cuDNN": machine.cudnn_version, "Triton": machine.triton_version}
    rows |= {"C++ compiler": machine.cxx_compiler}
    rows["native formats"] = ", ".join(native_formats(machine))
    attention = [kind for kind in ATTENTION if supports(kind, machine)]
    rows["attention"] = ", ".join(attention).replace(" attention", "")
    for what in CAPABILITIES:
        answer = supports(what, machine)
        why = answer.why.removesuffix(f"; {_instead(machine)}").removeprefix(f"{what} ")
        if not answer or what in ("torch.compile", "kernels"):
            rows[what] = f"{'yes' if answer else 'no'}: {why}"
    width = max(map(len, rows)) + 2
    fill = functools.partial(textwrap.fill, width=88, subsequent_indent=" " * width)
    return "\n".join(fill(f"{title:<{width}}{rows[title] or 'none'}") for title in rows)
