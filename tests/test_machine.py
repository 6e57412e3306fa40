"""Tests of helpers.machine: described GPUs against published tables of generations."""

import re
import subprocess
import sys
import types
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
import torch

from helpers import machine

GIB = 2**30
TORCH_2_11 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
TORCH_2_6 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")

# Written out, not computed: NVIDIA Transformer Engine's "Datatype and hardware support
# matrix", TensorRT's support matrix (Turing), PyTorch's sdp_utils.cpp (attention).
EXPECTED = {
    # name: generation, 16 bits and less that are native, attention backends
    "V100": ("Volta", "FP16", "efficient math"),
    "T4": ("Turing", "FP16", "efficient math"),
    "RTX 2080": ("Turing", "FP16", "efficient math"),
    "A100": ("Ampere", "TF32 BF16 FP16", "flash efficient cuDNN math"),
    "RTX 3060": ("Ampere", "TF32 BF16 FP16", "flash efficient cuDNN math"),
    "RTX 3090": ("Ampere", "TF32 BF16 FP16", "flash efficient cuDNN math"),
    "L4": ("Ada", "TF32 BF16 FP16 FP8", "flash efficient cuDNN math"),
    "RTX 4090": ("Ada", "TF32 BF16 FP16 FP8", "flash efficient cuDNN math"),
    "H100": ("Hopper", "TF32 BF16 FP16 FP8", "flash efficient cuDNN math"),
    "H200": ("Hopper", "TF32 BF16 FP16 FP8", "flash efficient cuDNN math"),
    "B200": (
        "Blackwell",
        "TF32 BF16 FP16 FP8 MXFP8 FP4",
        "flash efficient cuDNN math",
    ),
    "RTX 5090": (
        "Blackwell",
        "TF32 BF16 FP16 FP8 MXFP8 FP4",
        "flash efficient cuDNN math",
    ),
}


def cpu(**facts) -> machine.Machine:
    """A computer without a GPU on which everything else is in order."""
    usual = {"cxx_compiler": "g++", "torch_version": "2.11.0", "python": "3.12.3"}
    return machine.Machine("cpu", "some CPU", **(usual | facts))


def present(name: str, **facts) -> machine.Machine:
    """A GPU from the table as if it were in this computer, everything in order."""
    usual = {"cxx_compiler": "g++", "torch_version": "2.11.0", "python": "3.12.3"}
    usual |= {"triton_version": "3.6.0", "cudnn_version": "9.19.0", "described": False}
    return replace(machine.gpu(name, TORCH_2_11), **(usual | facts))


@pytest.fixture
def detect_anew():
    """Let a test that alters torch.cuda detect afresh, and leave no trace of it."""
    machine.detect.cache_clear()
    yield machine.detect
    machine.detect.cache_clear()


# --- described GPUs ---------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_generation_formats_and_attention_of_described_gpus(name):
    generation, formats, attention = EXPECTED[name]
    described = machine.gpu(name)
    assert described.described and described.device == "cuda"
    assert described.generation == generation
    assert machine.native_formats(described) == ("FP64", "FP32", *formats.split())
    for back_end in ("flash", "efficient", "cuDNN", "math"):
        answer = machine.supports(f"{back_end} attention", described)
        assert answer.ok == (back_end in attention.split()), answer
    assert machine.supports("torch.compile", described)
    assert machine.supports("CUDA graphs", described)


@pytest.mark.parametrize(
    ("name", "capability", "sms", "gib"),
    [
        ("T4", (7, 5), 40, 16),
        ("A100", (8, 0), 108, 40),
        ("L4", (8, 9), 58, 24),
        ("H200", (9, 0), 132, 141),
        ("B200", (10, 0), 148, 180),
        ("rtx 5090", (12, 0), 170, 32),
    ],
)
def test_data_sheet_values(name, capability, sms, gib):
    described = machine.gpu(name)
    assert (described.capability, described.sms) == (capability, sms)
    assert described.memory_bytes == gib * GIB
    assert described.torch_version == torch.__version__
    assert described.driver is None


@pytest.mark.parametrize(
    ("capability", "generation"),
    [
        ((5, 2), "Maxwell"),
        ((6, 1), "Pascal"),
        ((7, 0), "Volta"),
        ((7, 2), "Volta"),
        ((7, 5), "Turing"),
        ((8, 0), "Ampere"),
        ((8, 7), "Ampere"),
        ((8, 9), "Ada"),
        ((9, 0), "Hopper"),
        ((10, 3), "Blackwell"),
        ((11, 0), "Blackwell"),
        ((12, 1), "Blackwell"),
        ((13, 0), ""),
        (None, ""),
    ],
)
def test_generation_follows_the_compute_capability(capability, generation):
    assert machine.Machine("cuda", "x", capability=capability).generation == generation


def test_a_t4_has_fp16_but_neither_bf16_nor_tf32_and_says_why():
    t4 = machine.gpu("T4")
    assert machine.supports("FP16", t4)
    assert not machine.supports("BF16", t4) and not machine.supports("TF32", t4)
    assert machine.supports("BF16", t4).why == (
        "Turing has no BF16 Tensor Cores; PyTorch emulates it"
    )
    assert "Ada" in machine.supports("FP8", t4).why


def test_formats_that_no_source_settles_are_not_claimed():
    thor = machine.Machine("cuda", "Thor", capability=(11, 0), described=True)
    assert machine.supports("FP8", thor)
    assert not machine.supports("FP4", thor) and not machine.supports("MXFP8", thor)


@pytest.mark.parametrize("release", ["2.6.0", "2.9.1", "2.11.0", "2.15.0+cu132"])
@pytest.mark.parametrize("name", ["A100", "H200", "B200", "RTX 5090"])
def test_cudnn_attention_comes_first_on_9_and_10_from_torch_2_11(name, release):
    why = machine.supports(
        "cuDNN attention", replace(machine.gpu(name), torch_version=release)
    ).why
    first = name in ("H200", "B200") and release in ("2.11.0", "2.15.0+cu132")
    assert ("first choice" in why) == first
    assert ("on request" in why) != first


def test_cudnn_attention_needs_cudnn_where_the_gpu_is_present():
    assert machine.supports("cuDNN attention", present("H200"))
    answer = machine.supports("cuDNN attention", present("H200", cudnn_version=None))
    assert not answer and "cuDNN" in answer.why
    old = machine.supports("cuDNN attention", present("T4", cudnn_version=None))
    assert "Turing" in old.why  # the hardware is the first reason


# --- kernels ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kernels", "ok"),
    [
        ("V100", TORCH_2_11, False),  # sm_75 has the same major but a later minor
        ("V100", TORCH_2_6, True),
        ("T4", TORCH_2_11, True),
        ("L4", TORCH_2_11, True),  # runs sm_86
        ("RTX 3060", ("sm_80",), True),
        ("A100", ("sm_86",), False),
        ("H200", ("sm_80", "sm_86"), False),
        ("H200", ("sm_80", "compute_80"), True),  # PTX is translated for later GPUs
        ("A100", ("compute_90",), False),
        ("H200", ("sm_90a",), True),
        ("B200", ("sm_90a", "compute_90a"), False),
        ("B200", ("sm_100f",), True),
        ("B200", TORCH_2_6, False),
        ("RTX 5090", ("sm_100",), False),
        ("RTX 5090", TORCH_2_11, True),
        ("T4", (), False),
    ],
)
def test_kernels_match_the_builds_architectures(name, kernels, ok):
    assert machine.supports("kernels", machine.gpu(name, kernels)).ok == ok


def test_missing_kernels_name_the_builds_list_and_a_remedy():
    v100 = machine.supports("kernels", machine.gpu("V100", TORCH_2_11)).why
    assert "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120" in v100
    assert "7.0" in v100 and "cu126" in v100 and "2.14" in v100
    assert "2.8" in machine.supports("kernels", machine.gpu("RTX 5090", TORCH_2_6)).why
    assert "CUDA build" in machine.supports("kernels", machine.gpu("L4", ())).why


def test_kernels_of_the_installed_build_are_read_without_a_gpu():
    kernels = machine.gpu("T4").kernels
    assert all(re.fullmatch(r"(sm|compute)_\d+[af]?|gfx\w+", k) for k in kernels)
    assert bool(kernels) == bool(torch.version.cuda or torch.version.hip)


# --- torch.compile ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("computer", "reason"),
    [
        (cpu(), None),
        (cpu(cxx_compiler=None), "C++ compiler"),
        (cpu(python_headers=False), "Python.h"),
        (cpu(torch_version="2.6.0", python="3.13.1"), None),
        (cpu(torch_version="2.6.0", python="3.14.0"), "3.13"),
        (cpu(torch_version="2.9.1+cu128", python="3.14.0"), "3.13"),
        (cpu(torch_version="2.10.0", python="3.14.0"), None),
        (cpu(torch_version="2.14.1+cu130", python="3.15.0"), "3.14"),
        (cpu(torch_version="2.15.0", python="3.15.0"), None),
        (machine.Machine("mps", "an Apple GPU"), "Apple"),
    ],
)
def test_what_torch_compile_needs_without_a_gpu(computer, reason):
    answer = machine.supports("torch.compile", computer)
    assert answer.ok == (reason is None)
    assert (reason or "static check") in answer.why


def test_what_torch_compile_needs_on_a_gpu():
    assert machine.supports("torch.compile", present("H200"))
    without = machine.supports("torch.compile", present("H200", triton_version=None))
    assert not without and "triton-windows" in without.why
    assert (
        "C++" in machine.supports("torch.compile", present("T4", cxx_compiler=None)).why
    )
    pascal = replace(machine.gpu("T4"), capability=(6, 1))
    assert "Volta" in machine.supports("torch.compile", pascal).why
    # A described GPU is judged by its capability alone, whatever this computer lacks.
    bare = replace(machine.gpu("T4"), cxx_compiler=None, triton_version=None)
    assert machine.supports("torch.compile", bare)


# --- no NVIDIA GPU ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("features", "formats"),
    [
        ((), ("FP64", "FP32")),
        (("avx512_bf16",), ("FP64", "FP32", "BF16")),
        (("amx_bf16", "avx512_fp16"), ("FP64", "FP32", "BF16", "FP16")),
        (("asimdhp",), ("FP64", "FP32", "FP16")),
    ],
)
def test_a_cpu_has_the_formats_that_its_instructions_have(features, formats):
    assert machine.native_formats(cpu(cpu_features=features)) == formats


def test_a_cpu_names_what_it_lacks():
    assert machine.supports("TF32", cpu()).why == (
        "TF32 needs an NVIDIA Ampere GPU or newer; this machine has no GPU"
    )
    assert machine.supports("CUDA graphs", cpu()).why == (
        "CUDA graphs need an NVIDIA GPU; this machine has no GPU"
    )
    flash = machine.supports("flash attention", cpu())
    assert flash and "CPU's own" in flash.why
    assert machine.supports("math attention", cpu())
    assert not machine.supports("efficient attention", cpu())
    assert not machine.supports("cuDNN attention", cpu())
    assert machine.supports("kernels", cpu())


def test_a_gpu_that_cannot_be_used_stands_in_the_reason():
    answer = machine.supports("TF32", cpu(gpu_problem="its driver is too old"))
    assert not answer and "its driver is too old" in answer.why
    assert not machine.supports("kernels", cpu(gpu_problem="its driver is too old"))


def test_apple_and_amd_gpus_are_never_taken_for_nvidias():
    apple = machine.Machine("mps", "an Apple arm64 GPU")
    assert machine.native_formats(apple) == ("FP32", "FP16")
    assert "this machine has an Apple" in machine.supports("TF32", apple).why
    amd = machine.Machine("cuda", "AMD Instinct MI300X")
    assert machine.native_formats(amd) == ("FP64", "FP32", "BF16", "FP16")
    assert amd.generation == "" and machine.supports("CUDA graphs", amd)
    assert str(apple) and str(amd)


# --- every answer -----------------------------------------------------------------


COMPUTERS = [cpu(), machine.Machine("mps", "an Apple GPU"), *map(machine.gpu, EXPECTED)]


@pytest.mark.parametrize("computer", COMPUTERS, ids=lambda computer: computer.name)
def test_every_answer_is_one_plain_sentence(computer):
    for what in machine.CAPABILITIES:
        answer = machine.supports(what, computer)
        assert isinstance(answer, machine.Support)
        assert bool(answer) is answer.ok
        assert "\n" not in answer.why and not answer.why.endswith(".")
        assert 10 < len(answer.why) < 200 and "  " not in answer.why


@pytest.mark.parametrize("what", ["FP12", "bf16", "", None, ["BF16"]])
def test_an_unknown_capability_is_quoted_and_the_known_ones_listed(what):
    with pytest.raises(ValueError) as raised:
        machine.supports(what, cpu())
    assert repr(what) in str(raised.value)
    assert all(known in str(raised.value) for known in machine.CAPABILITIES)


@pytest.mark.parametrize("name", ["K80", "", None, 7])
def test_an_unknown_gpu_is_quoted_and_the_known_ones_listed(name):
    with pytest.raises(ValueError) as raised:
        machine.gpu(name)
    assert repr(name) in str(raised.value)
    assert all(known in str(raised.value) for known in EXPECTED)


@pytest.mark.parametrize(
    "ask",
    [
        lambda it: machine.supports("BF16", it),
        machine.describe,
        machine.label,
        machine.free_bytes,
        machine.native_formats,
    ],
)
def test_a_name_is_no_machine(ask):
    with pytest.raises(TypeError, match="'T4'"):
        ask("T4")


def test_machines_are_frozen():
    with pytest.raises(FrozenInstanceError):
        machine.gpu("T4").sms = 1


# --- memory -----------------------------------------------------------------------


def test_fit_takes_the_wanted_bytes_or_a_share_of_the_free_ones():
    t4 = machine.gpu("T4")
    free = 16 * GIB * 9 // 10
    assert machine.free_bytes(t4) == free
    assert machine.fit(GIB, machine=t4) == GIB
    assert machine.fit(float("inf"), machine=t4) == free // 2
    assert machine.fit(10**15, share=1, machine=t4) == free
    assert machine.fit(0, machine=t4) == 0
    assert isinstance(machine.fit(1e9, machine=t4), int)


@pytest.mark.parametrize(
    ("wanted", "share"),
    [(-1, 0.5), (float("nan"), 0.5), ("1 GB", 0.5), (1, 0), (1, 1.5), (1, None)],
)
def test_fit_quotes_what_it_cannot_take(wanted, share):
    with pytest.raises(ValueError) as raised:
        machine.fit(wanted, share, machine=machine.gpu("T4"))
    assert repr(wanted) in str(raised.value) and repr(share) in str(raised.value)


def test_free_memory_of_this_machine():
    here = machine.detect()
    assert 0 < machine.free_bytes() <= here.memory_bytes
    assert 0 < machine.fit(float("inf")) <= here.memory_bytes


def test_a_containers_limit_counts_as_the_ram(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{300 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {100 << 20}\n")
    monkeypatch.setattr(machine, "_CONTAINER", tmp_path)
    assert machine._ram_bytes() == (512 << 20, 312 << 20)
    (tmp_path / "memory.max").write_text("max\n")  # no limit
    assert machine._ram_bytes()[0] > 512 << 20


# --- this machine -----------------------------------------------------------------


def test_detect_agrees_with_torch_and_looks_once():
    here = machine.detect()
    assert here is machine.detect() is machine.describe()
    assert here.torch_version == torch.__version__
    assert here.memory_bytes > 0 and here.cpu_threads >= 1 and not here.described
    if not torch.cuda.is_available():
        assert here.device in ("cpu", "mps") and here.capability is None


def test_importing_neither_prints_nor_touches_cuda_or_torchs_switches():
    code = """
import torch
before = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
before += (torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision())
import helpers.machine
after = (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
after += (torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision())
assert before == after and not torch.cuda.is_initialized()
"""
    root = Path(machine.__file__).parent.parent
    run = [sys.executable, "-W", "error::DeprecationWarning:helpers", "-c", code]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def a_card(**facts) -> types.SimpleNamespace:
    usual = {"name": "Tesla V100", "major": 7, "minor": 0}
    usual |= {"multi_processor_count": 80, "total_memory": 16 * GIB}
    return types.SimpleNamespace(**(usual | facts))


def explode(*_, **__):
    raise RuntimeError("CUDA error: /opt/cuda/lib/x.so is broken. And more\nand more")


@pytest.mark.parametrize("broken", ["is_available", "get_device_properties"])
def test_detect_survives_a_broken_cuda(monkeypatch, detect_anew, broken):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, broken, explode)
    here = detect_anew()
    assert here.device == "cpu" and here.capability is None
    assert here.gpu_problem == "the GPU: CUDA error: x.so is broken"
    assert "x.so is broken" in str(here) and "/opt" not in str(here)
    assert not machine.supports("kernels")


def test_detect_turns_to_the_cpu_where_the_build_has_no_kernels(
    monkeypatch, detect_anew
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: a_card())
    monkeypatch.setattr(torch, "ones", explode)
    monkeypatch.setattr(torch.version, "hip", None)
    host = machine._host() | {"kernels": TORCH_2_11}
    monkeypatch.setattr(machine, "_host", lambda: host)
    here = detect_anew()
    assert here.device == "cpu" and here.sms is None
    assert here.gpu_problem.startswith("Tesla V100: this torch build has kernels for")
    assert "Tesla V100" in machine.supports("TF32", here).why


def test_detect_reads_the_card(monkeypatch, detect_anew):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    card = a_card(name="NVIDIA L4", major=8, minor=9, multi_processor_count=58)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.version, "hip", None)
    on_cpu = torch.ones(1)
    monkeypatch.setattr(torch, "ones", lambda *_, device: on_cpu)
    here = detect_anew()
    assert (here.device, here.name, here.generation) == ("cuda", "NVIDIA L4", "Ada")
    assert (here.capability, here.sms, here.memory_bytes) == ((8, 9), 58, 16 * GIB)


def test_an_old_drivers_warning_becomes_the_reason(monkeypatch, detect_anew):
    def warn_and_decline():
        import warnings

        warnings.warn("The NVIDIA driver is too old (found 470). Update", stacklevel=1)
        return False

    host = machine._host() | {"driver": "470.82", "kernels": TORCH_2_11}
    monkeypatch.setattr(machine, "_host", lambda: host)
    monkeypatch.setattr(torch.cuda, "is_available", warn_and_decline)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert detect_anew().gpu_problem == "The NVIDIA driver is too old (found 470)"
    host["kernels"] = ()  # a driver, but the torch build for CPUs alone
    machine.detect.cache_clear()
    assert "install a CUDA build" in detect_anew().gpu_problem


def test_the_compiler_is_the_one_that_inductor_takes(monkeypatch):
    monkeypatch.setenv("CXX", sys.executable + " --flag")
    assert machine._host()["cxx_compiler"] == Path(sys.executable).name
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert machine._host()["cxx_compiler"] is None


# --- text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "computer", [machine.detect(), *COMPUTERS], ids=lambda computer: computer.name
)
def test_the_summary_is_aligned_complete_and_free_of_paths(computer):
    text = str(machine.describe(computer))
    assert repr(computer) == text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 88
    assert not re.search(r"(^|\s)(/|[A-Z]:\\)\w", text)
    column = re.match(r"device\s+", lines[0]).end()
    assert all(line[column - 2 : column] == "  " for line in lines)
    titles = {line[:column].strip() for line in lines}
    titled = {"memory", "driver", "torch", "CUDA", "cuDNN", "Triton", "C++ compiler"}
    assert titled | {"native formats", "attention", "kernels"} <= titles
    for what in machine.CAPABILITIES:
        assert machine.supports(what, computer) or what in titles


def test_labels():
    assert machine.label(cpu(cpu_threads=2)) == "CPU, 2 threads · torch 2.11.0"
    assert machine.label(cpu(cpu_threads=1)) == "CPU, 1 thread · torch 2.11.0"
    assert machine.label(present("H200")) == "NVIDIA H200 · torch 2.11.0"
    t4 = replace(machine.gpu("T4"), torch_version="2.14.1+cu130")
    assert machine.label(t4) == "NVIDIA T4 (described) · torch 2.14.1"
    assert "\n" not in machine.label()


# --- a real GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_answers_agree_with_a_real_gpu():
    here = machine.detect()
    if here.device != "cuda":
        pytest.skip(here.gpu_problem)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    assert machine.supports("BF16").ok == native
    assert machine.supports("kernels") and here.driver
    assert here.capability == torch.cuda.get_device_capability()
    assert 0 < machine.free_bytes() <= here.memory_bytes
    one = torch.ones(1, device=here.device)
    assert (one + one).item() == 2
    # A backend that is said to be there runs when it alone is allowed.
    query = torch.randn(1, 2, 64, 64, device=here.device, dtype=torch.float16)
    back_ends = torch.nn.attention.SDPBackend
    for what, back_end in {
        "flash attention": back_ends.FLASH_ATTENTION,
        "efficient attention": back_ends.EFFICIENT_ATTENTION,
        "cuDNN attention": back_ends.CUDNN_ATTENTION,
    }.items():
        if machine.supports(what):
            with torch.nn.attention.sdpa_kernel(back_end):
                torch.nn.functional.scaled_dot_product_attention(query, query, query)
    torch.cuda.synchronize()


# ------------------------------------------------------------------------ attention


def qkv(device="cpu", dtype=torch.float32, tokens=16, width=32):
    shape = (3, 1, 2, tokens, width)
    return torch.randn(shape, device=device, dtype=dtype).unbind()


def test_every_back_end_answers_with_a_reason():
    found = machine.detect()
    device = "cuda" if found.device == "cuda" else "cpu"
    answers = machine.attention(*qkv(device))
    assert list(answers) == ["flash", "efficient", "cuDNN", "math"]
    assert answers["math"]
    assert all(answer.why for answer in answers.values())
    if device == "cpu":
        assert answers["flash"]
        assert "no kernel for a CPU" in answers["cuDNN"].why


def test_asking_leaves_the_back_ends_switched_as_they_were(recwarn):
    only_flash = torch.nn.attention.SDPBackend.FLASH_ATTENTION
    with torch.nn.attention.sdpa_kernel(only_flash):
        machine.attention(*qkv())
        with pytest.raises(TypeError):
            machine.attention(*qkv(), no_such_option=1)
        assert torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled()
    assert not recwarn


def test_inputs_of_another_form_are_an_error_not_a_refusal():
    q, k, v = qkv()
    mask = torch.ones(16, 16, dtype=torch.bool)
    with pytest.raises(TypeError, match="got 3"):
        machine.attention(q, k, 3)
    for wrong in (
        (q[0], k[0], v[0]),
        (q, k[..., :16], v),
        (q, k.half(), v),
        (q, k, v[:, :, :8]),
        (q[:, :1], k, v),
    ):
        with pytest.raises(ValueError, match=r"got \["):
            machine.attention(*wrong)
    with pytest.raises(ValueError, match="is_causal=True"):
        machine.attention(q, k, v, attn_mask=mask, is_causal=True)
    for options in ({"attn_mask": mask[:3, :7]}, {"attn_mask": mask.long()}):
        with pytest.raises(ValueError, match="cannot attend"):
            machine.attention(q, k, v, **options)
    with pytest.raises(ValueError, match="cannot attend"):
        machine.attention(q.long(), k.long(), v.long())
    assert machine.attention(q, k[:, :1], v[:, :1], enable_gqa=True)["math"]


def test_the_reason_is_the_one_that_follows_the_back_ends_name():
    said = [
        "Memory efficient kernel not used because: (Triggered internally at a.cpp:1.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally)",
        "Flash attention kernel not used because: (Triggered internally at a.cpp:2.)",
        "Flash Attention does not support non-null attn_mask. (Triggered internally)",
        "CuDNN attention kernel not used because: (Triggered internally at a.cpp:3.)",
        "head_dim should be no more than 256 (function check)",
    ]
    assert machine._refusal("flash", said).endswith(
        "does not support non-null attn_mask."
    )
    assert machine._refusal("cuDNN", said) == "head_dim should be no more than 256"
    assert machine._refusal("efficient", said).endswith("been runtime disabled.")
    assert machine._refusal("flash", []) == ""


@pytest.mark.gpu
@pytest.mark.skipif(
    machine.detect().device == "cuda" and not machine.supports("flash attention"),
    reason="this GPU has no flash attention",
)
def test_a_gpus_refusals_are_pytorchs_own_words():
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda")
    half = qkv("cuda", torch.float16)
    assert all(machine.attention(*half).values())
    assert "attn_mask" in machine.attention(*half, attn_mask=mask)["flash"].why
    single = machine.attention(*qkv("cuda"))
    assert "Got Query dtype: float" in single["flash"].why
    assert "Got Query dtype: float" in single["cuDNN"].why
    assert single["efficient"] and single["math"]
    wide = machine.attention(*qkv("cuda", torch.float16, width=264))
    assert "256" in wide["flash"].why


# ------------------------------------------------------------------- what to try first


def described(name):
    if name == "no GPU":
        return machine.Machine("cpu", "a CPU", described=True)
    return machine.gpu(name)


EVERY = [*machine.DATA_SHEETS, "no GPU"]
FIRST_FORMAT = {"V100": "FP16", "T4": "FP16", "RTX 2080": "FP16", "no GPU": "FP32"}


@pytest.mark.parametrize("name", EVERY)
def test_the_recommended_format_is_native(name):
    here = described(name)
    for kind in machine.KINDS:
        advice = machine.recommend(kind, "fixed", "large", here)
        assert advice.options["precision"] == FIRST_FORMAT.get(name, "BF16")
        assert machine.supports(advice.options["precision"], here)
        assert advice.options.get("channels_last", False) == (kind == "CNN")


@pytest.mark.parametrize("name", EVERY)
def test_varying_shapes_get_nothing_that_needs_fixed_ones(name):
    for kind in machine.KINDS:
        for batch in machine.BATCHES:
            advice = machine.recommend(kind, "varying", batch, described(name))
            assert advice.options["compile"] == "default"
            assert advice.options["dynamic"] is True
            said = {a.topic: a.do for a in advice.advice}
            assert said.get("CUDA graph", "no") == "no"
            assert said.get("cudnn.benchmark", "no") == "no"


@pytest.mark.parametrize("name", EVERY)
def test_small_batches_get_graphs_where_there_are_graphs(name):
    small = machine.recommend("other", "fixed", "small", described(name))
    large = machine.recommend("other", "fixed", "large", described(name))
    mode = "default" if name == "no GPU" else "reduce-overhead"
    assert small.options["compile"] == mode and large.options["compile"] == "default"


def test_advice_has_reasons_and_sources_and_makes_a_plan():
    from helpers.optimizing import Plan

    for name in EVERY:
        for kind in machine.KINDS:
            advice = machine.recommend(kind, "fixed", "small", described(name))
            Plan(**advice.options)
            for one in advice.advice:
                assert one.why and one.source.startswith("https://")
                assert f"{one.do}: {one.why}" in repr(advice)
    topics = {
        a.topic for a in machine.recommend("other", machine=described("L4")).advice
    }
    assert "beyond" in topics
    old = machine.recommend("other", machine=described("A100"))
    assert "beyond" not in {a.topic for a in old.advice}


@pytest.mark.parametrize(
    "asked, words",
    [
        (("RNN", "fixed", "large"), "'RNN'.*CNN, transformer, other"),
        (("CNN", "static", "large"), "'static'.*fixed, varying"),
        (("CNN", "fixed", 32), "32.*small, large"),
    ],
)
def test_recommend_refuses_what_it_does_not_know(asked, words):
    with pytest.raises(ValueError, match=words):
        machine.recommend(*asked)
