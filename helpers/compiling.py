"""What torch.compile did: whether it works here, what it made, how often it compiled.

``torch.compile`` is lazy and silent. It compiles at the first call, again whenever an
assumption of the compiled code fails, and from its recompile limit on it runs what is
new eager, with one line in the log. Here that is made visible. The attributes of
Dynamo and Inductor used here have the same names in torch 2.6 to 2.14; they are not
documented.

Source: https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html
"""

import contextlib
import dataclasses
import functools
import importlib
import io
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from unittest import mock

import torch

from helpers import machine
from helpers._arguments import Count, Positive, Size, checked
from helpers.comparing import quiet_profiler, synchronize

# A line of generated code that launches something: a kernel, or a library's function.
_LAUNCH = r"^ +(?:\w+ = )?((?:cpp|triton)_\w*fused_\w+|multi_kernel_\d+"
_LAUNCH += r"|extern_kernels\.\w+|torch\.ops\.\w+\.\w+\.\w+)(?:\.run)?\("


@functools.cache
def works() -> machine.Support:
    """Compile one addition, once in this process; say whether it ran, or why not.

    ``machine.supports("torch.compile")`` looks at versions and compilers; this tries.
    """
    static = machine.supports("torch.compile")
    if not static:
        return static
    with fresh(), _watched() as seen:
        try:
            torch.compile(lambda x: x + 1)(torch.ones(8, device=_device()))
        except Exception as error:
            return machine.Support(False, _gist(error))
    if not seen.texts:
        return machine.Support(False, "torch.compile is switched off: it ran eager")
    return machine.Support(True, "a small function was compiled, and ran")


@functools.cache
def captures() -> machine.Support:
    """Say whether Dynamo can capture graphs here; for that it needs no C++ compiler."""
    counter = Counter()
    try:
        torch.compile(lambda x: x + 1, backend=counter)(torch.ones(1))
    except Exception as error:
        return machine.Support(False, _gist(error))
    if not counter.graphs:
        return machine.Support(False, "torch.compile is switched off: no graph came")
    return machine.Support(True, "a graph was captured")


@checked
def refused(call: Callable, **options) -> Callable:
    """Stand in for ``torch.compile`` where it does not work: what it gives only raises.

    ``compare`` then shows the reason in the row of the compiled variant.
    """

    def unavailable(*args, **named):
        raise RuntimeError(works().why)

    return unavailable


@checked
@contextlib.contextmanager
def fresh(limit: Count = 64):
    """Compile inside the block as a new process would, and forget it all afterwards.

    Nothing compiled earlier is used, in memory or in the folder of caches. The
    recompile limit, which all variants of one model in a process share, is ``limit``
    instead of 8: variants that are compared do not push each other into eager mode.
    The end of a block within another forgets what the outer one has compiled, too.

    Raises:
        ValueError: ``limit`` is below 1.
    """
    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch({limit_name(): limit}), _no_caches():
            yield
    finally:
        torch._dynamo.reset()


def limit_name() -> str:
    """Return the name of the recompile limit in ``torch._dynamo.config``."""
    renamed = hasattr(torch._dynamo.config, "recompile_limit")  # since torch 2.7
    return "recompile_limit" if renamed else "cache_size_limit"


@contextlib.contextmanager
def quiet():
    """Keep the compiler's logs and warnings, and Python's stderr, silent inside."""
    log = logging.getLogger("torch._inductor")
    with (
        mock.patch.multiple(log, handlers=[logging.NullHandler()], propagate=False),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(action="ignore"),
    ):
        yield


@contextlib.contextmanager
def logged():
    """Collect Dynamo's warnings inside the block, instead of their going to stderr.

    Yields:
        A list, one line for each warning.
    """
    log, lines = logging.getLogger("torch._dynamo"), []
    collect = logging.Handler(logging.WARNING)
    collect.emit = lambda record: lines.append(record.getMessage().splitlines()[0])
    with mock.patch.multiple(log, handlers=[collect], propagate=False):
        yield lines


@checked
def new_process(
    code: str, *arguments: str, at_most: Positive = 60, **environment: str
) -> list[str]:
    """Run Python code in a process of its own, with no caches of the compiler.

    A process that dies takes nothing along but itself.

    Args:
        code: the program; it finds the arguments in ``sys.argv[1:]``.
        at_most: seconds until the process is ended.
        **environment: variables that it sees besides those of this process.

    Returns:
        A list of the lines that it printed; if it did not end well, the last line says
        so, with its last words.
    """
    with tempfile.TemporaryDirectory() as empty:
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": empty} | environment
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-c", code, *arguments]
        with subprocess.Popen(command, env=env, **options) as it:
            try:
                out, complaint = it.communicate(timeout=at_most)
                end = f"exit status {it.returncode}" if it.returncode else ""
            except subprocess.TimeoutExpired:
                it.kill()
                out, complaint = it.communicate()
                end = f"no end in {at_most:g} s"
    last = [line.strip() for line in complaint.splitlines() if line.strip()][-1:]
    return out.splitlines() + ([": ".join([end, *last])] if end else [])


# ----------------------------------------------------- what was generated, at what cost


@checked
@dataclasses.dataclass(frozen=True)
class Code:
    """Hold what Inductor generated.

    Attributes:
        kernels: what the generated code launches, in order: kernels, by the operations
            fused in them, and calls into libraries (``extern_kernels.mm``).
        bytes_moved: what these read and write, by Inductor's own count; 0 for code that
            came out of a cache.
        text: the generated Python and kernels.
    """

    kernels: tuple[str, ...]
    bytes_moved: Size
    text: str = dataclasses.field(repr=False)


@checked
@dataclasses.dataclass(frozen=True)
class ColdStart:
    """Hold what it takes until a compiled call is steady.

    Attributes:
        seconds: the first three calls together. They compile, warm up and, where CUDA
            graphs are used, record.
        kept_bytes: GPU memory that stays reserved for it, such as the memory pool of
            CUDA graphs, which those that live together share; None without a GPU.
        code: what was generated meanwhile.
    """

    seconds: float
    kept_bytes: int | None
    code: Code


@checked
def generate(call: Callable, *args, **options) -> Code:
    """Compile a call without gradients, run it once, and return what was generated.

    Args:
        call, args: compiled and called as ``call(*args)``.
        options: for ``torch.compile``, such as ``dynamic=True``.

    Raises:
        RuntimeError: nothing was generated; the call ran eager.
    """
    with fresh(), torch.no_grad(), _watched() as seen:
        torch.compile(call, **options)(*args)
    if not seen.texts:
        raise RuntimeError(
            f"torch.compile generated nothing for {call!r}: it ran eager"
        )
    return seen.code()


@checked
def cold_start(call: Callable[[], object], isolated: bool = True) -> ColdStart:
    """Make the first three calls of a compiled callable.

    Args:
        isolated: without any cache on disk; False finds what the ``fresh`` block has
            compiled before.
    """
    on_gpu = _device() == "cuda"
    before = _reserved() if on_gpu else 0
    with (
        _no_caches() if isolated else contextlib.nullcontext(),
        _watched() as seen,
    ):
        synchronize()
        start = time.perf_counter()
        for _ in range(3):
            call()
            synchronize()
        seconds = time.perf_counter() - start - seen.counting_s
    kept = _reserved() - before if on_gpu else None
    return ColdStart(seconds, kept, seen.code())


@dataclasses.dataclass
class _Seen:
    """Collect what Inductor generates, and the seconds spent on counting bytes."""

    texts: list[str] = dataclasses.field(default_factory=list)
    bytes_moved: int = 0
    counting_s: float = 0.0

    def code(self) -> Code:
        # The part that calls the kernels stands behind their definitions.
        parts = (t.partition("async_compile.wait(globals())")[2] for t in self.texts)
        launched = re.findall(_LAUNCH, "".join(parts), flags=re.MULTILINE)
        kernels = tuple(name.removeprefix("torch.ops.") for name in launched)
        return Code(kernels, self.bytes_moved, "\n".join(self.texts))


@contextlib.contextmanager
def _watched():
    """Note what Inductor generates inside, and keep autotuning's log off stderr."""
    from torch._inductor.graph import GraphLowering

    seen, codegen = _Seen(), GraphLowering.codegen

    def counting(graph, *args, **named):
        generated = codegen(graph, *args, **named)
        start = time.perf_counter()
        seen.bytes_moved += graph.count_bytes()[0]
        seen.counting_s += time.perf_counter() - start
        return generated

    with (
        mock.patch.object(GraphLowering, "codegen", counting),
        mock.patch.object(GraphLowering, "save_output_code", seen.texts.append),
        quiet(),
    ):
        yield seen


@checked
def graph_launches(call: Callable[[], object]) -> int:
    """Count the CUDA graphs that a call launches; 0 without a GPU. Calls it twice."""
    call()
    return count_launches(call)[1]


@checked
def count_launches(call: Callable[[], object]) -> tuple[int, int]:
    """Count what one run of a call launches: kernels one by one, and CUDA graphs.

    Both are 0 without a GPU. Where the call records a graph, that counts as launching;
    copies and fills do not count.
    """
    if _device() != "cuda":
        call()
        return 0, 0
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA]
    with quiet_profiler(), torch.profiler.profile(activities=activities) as profile:
        call()
        synchronize()
    names = [event.name for event in profile.events()]
    kernel = r"(cuda|cu|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel"
    kernels = sum(bool(re.match(kernel, name)) for name in names)
    return kernels, sum(bool(re.match("(cuda|hip)GraphLaunch", name)) for name in names)


@contextlib.contextmanager
def graph_skips():
    """Collect why Inductor runs something inside the block without a CUDA graph.

    It only logs that, with more under ``TORCH_LOGS=cudagraphs`` (in older releases
    ``perf_hints``).

    Yields:
        A list, each reason once. What stayed out of a graph altogether, because Dynamo
        left it eager, is not in it.

    Raises:
        RuntimeError: this torch has no place to listen at.
    """
    reasons, name = [], "log_cudagraph_skip_and_bump_counter"
    with contextlib.ExitStack() as patches:
        listening = False
        for module in ("output_code", "cudagraph_trees", "compile_fx"):
            place = importlib.import_module(f"torch._inductor.{module}")
            if hasattr(place, name):
                note = functools.partial(_note_skip, reasons, getattr(place, name))
                patches.enter_context(mock.patch.object(place, name, note))
                listening = True
        if not listening:
            raise RuntimeError(f"torch {torch.__version__} does not say what it skips")
        yield reasons


@checked
def operations(call: Callable, *args) -> tuple[list[str], list[str]]:
    """Return the operations that Dynamo captures, and those handed on to Inductor.

    In between, unused results are dropped and operations are decomposed. Nothing is
    compiled: both graphs run eager. What was compiled before is forgotten.

    Args:
        call, args: called once as ``call(*args)``, without gradients.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    captured, kept = [], []

    def note(graph, inputs, names: list):
        names += [
            getattr(node.target, "__name__", str(node.target))
            for node in graph.graph.nodes
            if node.op.startswith("call")
        ]
        return make_boxed_func(graph.forward)

    lower = aot_autograd(fw_compiler=functools.partial(note, names=kept))

    def backend(graph, inputs):
        note(graph, inputs, captured)
        return lower(graph, inputs)

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(call, backend=backend)(*args)
    finally:
        torch._dynamo.reset()
    return captured, kept


# ---------------------------------------------------------------- how often it compiled


class Counter:
    """Count graphs instead of compiling them: a backend of ``torch.compile``.

    ``f = Counter().compile(model)`` captures, guards and recompiles as usual; a graph
    then runs as it was captured, so that counting is quick and needs no compiler.

    Attributes:
        graphs: how many graphs were captured so far.
        runs: how many times one of them ran; a call that adds none was eager.
    """

    def __init__(self):
        self.graphs = self.runs = 0

    @checked
    def compile(self, call: Callable, **options) -> Callable:
        """Return ``torch.compile(call, backend=self)``, having forgotten earlier ones.

        Where Dynamo does not work, see ``captures``, the call as it is.
        """
        if not captures():
            return call
        torch._dynamo.reset()
        return torch.compile(call, backend=self, **options)

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*args):
            self.runs += 1
            return graph.forward(*args)

        return run


# ------------------------------------------------------------------------------ details


@contextlib.contextmanager
def _no_caches():
    """Give Inductor empty caches inside; PyTorch's own way, renamed in torch 2.8."""
    from torch._inductor import utils

    empty = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    failure = None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with empty(dir=folder):
            try:
                yield
            except BaseException as error:  # it would log that it keeps the folder
                failure = error
    if failure is not None:
        raise failure


def _reserved() -> int:
    synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _note_skip(reasons: list[str], original: Callable, message: str) -> None:
    words = re.sub(r"^(?:(?:skipp|disabl)ing cudagraphs? due to )+", "", message)
    words = words.partition("\n")[0].partition(". Found from")[0].strip("[]'")
    if words not in reasons:
        reasons.append(words)
    original(message)


def _device() -> str:
    return "cuda" if machine.detect().device == "cuda" else "cpu"


def _gist(error: Exception) -> str:
    words = " ".join(str(error).split())
    words = re.sub(r"\S*[/\\]", "", words)  # no folders of this machine
    return f"{type(error).__name__}: {words[:160]}"
