"""Compare variants of one computation: time, error and memory, side by side.

The clock is `torch.utils.benchmark.timer`, which waits for the GPU; it is read before
and after a block of calls. What is added here is what makes two numbers comparable:
variants take turns (A B, B A, A B, …), so that a drifting machine hits all of them; the
speedup is the ratio within a round; and no time stands without the error of its answer.
"""

import contextlib
import dataclasses
import datetime
import dis
import functools
import inspect
import math
import os
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.utils import benchmark

from helpers import machine
from helpers._arguments import Count, Least0, Size, checked, quoted

WARMUP_SECONDS = 1.0  # at most, per variant, besides the first call
RESOLUTION = 0.03  # identical callables can differ by this: no smaller gain is claimed
FEWEST_ROUNDS = 8  # with fewer, no 99 % interval of the median exists
GRAD_MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
}


@checked
@dataclasses.dataclass(frozen=True)
class Error:
    """Say how far an output is from the reference, computed in FP64.

    Attributes:
        relative: ‖output - reference‖₂ / ‖reference‖₂; NaN if the output is not finite,
            infinite if the reference is all zero and the output is not.
        largest: the largest absolute difference; NaN likewise.
        nans, infs: how many there are in the output.
        exact: whether every element is equal.
        steady: whether a later call gave the same answer, within 1 %. Dropout does not,
            nor does a variant that overwrites its own input.
    """

    relative: float
    largest: float
    nans: Size = 0
    infs: Size = 0
    exact: bool = False
    steady: bool = True

    def __str__(self) -> str:
        if self.nans or self.infs:
            counts = ((self.nans, "NaN"), (self.infs, "Inf"))
            return ", ".join(f"{n:,} {what}" for n, what in counts if n)
        words = "0 (exact)" if self.exact else f"{self.relative:.1e}"
        return words if self.steady else f"{words}, changes from call to call"


@checked
@dataclasses.dataclass(frozen=True)
class Ratio:
    """Hold a speedup, baseline time ÷ time: the median over the rounds, and its ends.

    ``low`` and ``high`` are the 99 % confidence interval of the median, by order
    statistics: no assumption about how the times are distributed. With fewer than
    eight rounds there is none, and they are infinitely far apart.
    """

    median: float
    low: float
    high: float

    @property
    def measurable(self) -> bool:
        """Say whether the interval excludes 1, and the median by the resolution."""
        if not self.low <= 1 <= self.high and self.median > 0:
            return abs(math.log(self.median)) > RESOLUTION
        return False

    def __str__(self) -> str:
        if math.isnan(self.median):
            return "nothing to compare with"
        if not self.measurable:
            return "no measurable difference"
        return f"{_short(self.median)}× ({_short(self.low)} to {_short(self.high)})"


@checked
@dataclasses.dataclass(frozen=True)
class Result:
    """Hold what was measured of one variant; seconds and bytes.

    Attributes:
        seconds: time per call of each round, in the order of the rounds.
        cold_s: the first call, with whatever it loads, compiles or tunes.
        error: against the reference, None if there was nothing to compare.
        peak_bytes: memory taken on top during a call, the GPU's if there is one; None
            where it cannot be measured.
        weight_bytes: parameters and buffers of the modules that the variant refers to.
        failure: why there is no measurement, "" if there is one.
    """

    name: str
    seconds: tuple[Least0, ...] = ()
    cold_s: float = math.nan
    error: Error | None = None
    peak_bytes: int | None = None
    weight_bytes: Size = 0
    failure: str = ""

    @property
    def n(self) -> int:
        return len(self.seconds)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.nan

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """Return the 25th and 75th percentile of the rounds' times."""
        return _quartiles(self.seconds)


@checked
class Comparison(Mapping):
    """Hold the results of one comparison, by variant; shown as a table.

    ``comparison["BF16"]`` is a ``Result``; ``comparison.speedup("BF16")`` a ``Ratio``
    against the first variant; ``conditions`` says where and when it was measured.
    """

    def __init__(self, results: list[Result], conditions: dict):
        if not results:
            raise ValueError(f"results={results!r}: give at least one Result")
        self._results = {result.name: result for result in results}
        self.conditions = conditions

    def __getitem__(self, name: str) -> Result:
        if name not in self._results:
            raise KeyError(f"no variant {name!r}: there are {list(self._results)}")
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def baseline(self) -> Result:
        """Return the first variant's result."""
        return next(iter(self._results.values()))

    @checked
    def speedup(self, name: str, over: str | None = None) -> Ratio:
        """Return baseline time ÷ the variant's time; NaN where either failed.

        Args:
            over: another variant to take as the baseline, instead of the first.

        Raises:
            KeyError: there is no such variant; the message lists those there are.
        """
        base = self.baseline if over is None else self[over]
        pairs = zip(base.seconds, self[name].seconds, strict=False)
        tick = 1e-12  # a time of 0 is a clock's
        ratios = [max(base, tick) / max(mine, tick) for base, mine in pairs]
        if not ratios:
            return Ratio(math.nan, math.nan, math.nan)
        return Ratio(statistics.median(ratios), *_median_interval(ratios))

    def table(self):
        """Return a pandas DataFrame for reading: one row a variant, units in the text.

        Columns in which no variant has anything are left out.
        """
        import pandas

        rows = {}
        for name, result in self.items():
            low, high = result.quartiles_s
            measured, base = bool(result.seconds), result is self.baseline
            rows[name] = {
                "time": show_seconds(result.median_s) if measured else "failed",
                "spread (IQR)": f"{(high - low) / (result.median_s or 1):.0%}",
                "speedup": "baseline" if base else str(self.speedup(name)),
                "error": str(result.error or "-"),
                "extra memory": show_bytes(result.peak_bytes),
                "weights": show_bytes(result.weight_bytes or None),
                "first call": show_seconds(result.cold_s),
                "rounds": str(result.n),
                "failure": result.failure or "-",
            }
            if not measured:
                rows[name] |= {"spread (IQR)": "-", "speedup": "-", "rounds": "-"}
        table = pandas.DataFrame.from_dict(rows, orient="index")
        return table.loc[:, (table != "-").any()]

    def __repr__(self) -> str:
        return self.table().to_string()

    def _repr_html_(self) -> str:
        return markup(self.table())


def markup(table) -> str:
    """Write a table as HTML; nothing is cut off, and no unit parts from its number."""
    import pandas

    if not isinstance(table, pandas.DataFrame):
        raise TypeError(f"table={quoted(table)}: give a pandas DataFrame")
    with pandas.option_context("display.max_colwidth", None):
        html = table.to_html()
    return re.sub(r"(\d) (\w+)</td>", r"\1&nbsp;\2</td>", html)


def compare(
    variants: Mapping[str, Callable],
    reference=None,
    mode: str = "inference",
    seconds: float = 0.5,
    rounds: int = 21,
) -> Comparison:
    """Run variants of one computation in turns; return time, error and memory of each.

    Args:
        variants: name → callable without arguments. The first is the baseline. A
            callable that raises becomes a row with its error; the others still run.
        reference: the right answer: a tensor, or a (nested) tuple, list, dict or
            dataclass of them, of the shape that the callables return. Left out, the
            first variant's answer is taken.
        mode: "inference", "no_grad" or "grad": the grad mode of every call.
        seconds: measuring time per variant, warm-up not counted.
        rounds: how many times the variants take turns, at least 3.

    Returns:
        A ``Comparison``. A block of a round holds as many calls as fit in its share of
        ``seconds``, at least one. Where that takes more than four times as long, the
        rounds get fewer, down to eight.

    Raises:
        TypeError, ValueError: an argument cannot be used; the message quotes it.
    """
    _check_arguments(variants, reference, mode, seconds, rounds)
    right = None if reference is None else _copied(reference)
    results, failures, blocks = {}, {}, {}
    with GRAD_MODES[mode]():
        for name, call in variants.items():
            results[name], output = _first_calls(name, call, right)
            if right is None and output is not None and results[name].error.exact:
                right = output
            if not results[name].failure:
                blocks[name] = _block(name, call, seconds / rounds, failures)
        start = time.perf_counter()
        _take_turns(blocks, 1)  # a practice round, to see what a round costs
        affordable = 4 * seconds * len(blocks) / (time.perf_counter() - start)
        rounds = max(min(rounds, int(affordable)), min(rounds, FEWEST_ROUNDS))
        samples = _take_turns(blocks, rounds)
    for name, times in samples.items():
        failed = name in failures
        changes = {"failure": failures[name]} if failed else {"seconds": tuple(times)}
        results[name] = dataclasses.replace(results[name], **changes)
    return Comparison(list(results.values()), conditions() | {"mode": mode})


def _take_turns(
    blocks: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Time one block of each variant per round; turn the order around each round."""
    samples = {name: [] for name in blocks}
    order = list(blocks)
    for _ in range(rounds):
        for name in order:
            samples[name].append(blocks[name]())  # seconds per call
        order.reverse()
    return samples


def _block(
    name: str, call: Callable, seconds: float, failures: dict[str, str]
) -> Callable[[], float]:
    """Make a function that times a block of calls of about ``seconds``, at least one.

    The GPU is waited for before and after the block, not at each call. A failure is
    noted once, by name; from then on the function returns NaN.
    """
    calls = 0

    def seconds_per_call() -> float:
        nonlocal calls
        if name in failures:
            return math.nan
        try:
            if not calls:
                calls = max(1, int(seconds / max(time_block(call, 1), 1e-9)))
            return time_block(call, calls)
        except Exception as failure:
            failures[name] = reason(failure)
            return math.nan

    return seconds_per_call


@checked
def time_block(call: Callable, calls: Count) -> float:
    """Return seconds per call of a block of calls; wait for the GPU at both ends."""
    synchronize()
    start = benchmark.timer()
    for _ in range(calls):
        call()
    synchronize()
    return max(benchmark.timer() - start, 1e-9) / calls  # one tick of a clock


def _first_calls(name: str, call: Callable, right: dict | None) -> tuple[Result, dict]:
    """Make the cold call, check the answer, warm up and measure memory."""
    try:
        synchronize()  # what was asked of the GPU before is not this call's
        start = time.perf_counter()
        output = call()
        synchronize()
        cold_s = time.perf_counter() - start
        # Compare and copy now: a CUDA graph overwrites its output at the next call.
        output = _copied(output)
        error = _difference(output, output if right is None else right)
        _warm_up(call)
        peak = peak_bytes(call)
        drift = _difference(_copied(call()), output).relative
        steady = drift <= 0.01 or bool(error.nans or error.infs)
        error = dataclasses.replace(error, steady=steady)
        return Result(name, (), cold_s, error, peak, weight_bytes(call)), output
    except Exception as failure:
        if machine.detect().device == "cuda":
            torch.cuda.empty_cache()
        return Result(name, failure=reason(failure)), None


@checked
def reason(failure: Exception) -> str:
    """Write an exception on one line, at most 200 characters of its message."""
    words = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {words[:200]}"


def _warm_up(call: Callable) -> None:
    """Call for a tenth of a second, and until no call has got faster for a while."""
    best, steady, start, elapsed = math.inf, 0, time.perf_counter(), 0.0
    while (steady < 3 or elapsed < 0.1) and elapsed < WARMUP_SECONDS:
        took = time_block(call, 1)
        steady = 0 if took < 0.9 * best else steady + 1
        best = min(best, took)
        elapsed = time.perf_counter() - start


def synchronize() -> None:
    """Wait until the GPU has done all that was asked of it; nothing to do on a CPU."""
    device = machine.detect().device
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


@checked
def peak_bytes(call: Callable) -> int | None:
    """Return the memory that a call takes on top of what is allocated, in bytes.

    The most that is held at one moment: the GPU's, as PyTorch's allocator counts it,
    or without a GPU the RAM of tensors, as `torch.profiler` records each allocation.
    None on an Apple GPU, and on a CPU while another profiler runs. On a CPU, other
    threads' tensors are not seen, nor that a call frees what was there before it.
    """
    device = machine.detect().device
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        synchronize()
        return torch.cuda.max_memory_allocated() - before
    if device == "mps" or torch.autograd._profiler_enabled():
        return None
    return max((held for _, held in memory_over_time(call)), default=0)


@checked
def memory_over_time(call: Callable) -> list[tuple[float, int]]:
    """Return what a call holds on top of what was there before, step by step.

    Each allocation and each release of the device's memory that `torch.profiler` notes:
    (seconds since the first, bytes held from then on). On a GPU these are the
    allocator's, at the time when the CPU asks for them, not when a kernel runs; and a
    replayed CUDA graph asks for none. Empty on an Apple GPU. Measure times first: a
    process that was profiled may launch more slowly.
    """
    device = machine.detect().device
    activities = [torch.profiler.ProfilerActivity.CPU]  # it notes the GPU's memory, too
    with (
        quiet_profiler(),
        torch.profiler.profile(activities=activities, profile_memory=True) as profile,
    ):
        call()
        synchronize()
    held, start, steps = 0, None, []
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]" and event.device_type().name.lower() == device:
            start = event.start_ns() if start is None else start
            held += event.nbytes()
            steps.append(((event.start_ns() - start) / 1e9, held))
    return steps


@contextlib.contextmanager
def quiet_profiler():
    """Keep `torch.profiler` and its library, which reads a log level, from stderr."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = before or "99"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it does not keep between cycles
            yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def weight_bytes(call: Callable) -> int:
    """Add up the ``weights`` of a callable; storage that is shared counts once."""
    storages = [tensor.untyped_storage() for tensor in weights(call)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


@checked
def weights(call: Callable) -> list[torch.Tensor]:
    """Return the parameters and buffers of all modules that a callable refers to.

    Modules are looked for in the callable itself, what it is bound to, its arguments if
    it is partial, its closure, its defaults and the globals that its code names, and
    there in lists, tuples and dicts.
    """
    found = [call, getattr(call, "__self__", None)]
    function = call
    if isinstance(call, functools.partial):
        function = call.func
        found += [function, *call.args, *call.keywords.values()]
    function = inspect.unwrap(getattr(function, "__func__", function))
    found.append(function)
    if inspect.isfunction(function):
        found += [cell.cell_contents for cell in function.__closure__ or ()]
        found += [*(function.__defaults__ or ())]
        found += (function.__kwdefaults__ or {}).values()
        names = _global_names(function.__code__)
        found += [function.__globals__.get(name) for name in names]
    tensors = []
    while found:
        thing = found.pop()
        if isinstance(thing, torch.nn.Module):
            tensors += (*thing.parameters(), *thing.buffers())
        elif type(thing) in (list, tuple):
            found += thing
        elif type(thing) is dict:
            found += thing.values()
    return tensors


def _global_names(code) -> set[str]:
    """Return the globals that a function's code loads, nested functions included."""
    loads = dis.get_instructions(code)
    names = {step.argval for step in loads if step.opname == "LOAD_GLOBAL"}
    inner = [constant for constant in code.co_consts if inspect.iscode(constant)]
    return names.union(*map(_global_names, inner))


# -------------------------------------------------------------------------- the answers


def tensors(output) -> Iterator[tuple[str, torch.Tensor]]:
    """Walk through an output: yield (place, tensor) for each tensor or number in it.

    Raises:
        TypeError: it holds something that is neither a number nor a tensor.
    """
    if isinstance(output, torch.Tensor):
        yield "", output
    elif isinstance(output, bool | int | float):
        if isinstance(output, int) and not -(2**63) <= output < 2**63:
            raise ValueError(f"cannot compare {quoted(output)}: give 64 bits")
        kind = torch.float64 if isinstance(output, float) else None
        yield "", torch.tensor(output, dtype=kind)  # FP32 would round it
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = dataclasses.fields(output)
        yield from tensors(
            {field.name: getattr(output, field.name) for field in fields}
        )
    elif isinstance(output, Mapping | tuple | list):
        pairs = output.items() if isinstance(output, Mapping) else enumerate(output)
        for key, value in pairs:
            if value is not None:
                yield from ((f"[{key!r}]{place}", t) for place, t in tensors(value))
    else:
        raise TypeError(
            f"cannot compare {quoted(output)}, a {type(output).__name__}: give "
            "tensors, numbers, or "
            "tuples, lists, dicts or dataclasses of them"
        )


def difference(output, reference) -> Error:
    """Compare an output with the right answer, in FP64 over all tensors together.

    Raises:
        ValueError: the structures or shapes differ, or the reference is not finite.
    """
    right = dict(tensors(reference))
    for place, expected in right.items():
        if not _wide(expected).isfinite().all():  # FP8 cannot say it of itself
            where = f"at {place}, " if place else ""
            raise ValueError(f"the reference has NaN or Inf: {where}{quoted(expected)}")
    return _difference(dict(tensors(output)), right)


def _difference(mine: dict, right: dict) -> Error:
    shapes = [{k: tuple(t.shape) for k, t in side.items()} for side in (mine, right)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"output has shapes {shapes[0]}, reference {shapes[1]}")
    squared_difference = squared_reference = largest = 0.0
    nans, infs, exact = 0, 0, True
    # Scaled, so that squares of very large or small numbers stay numbers.
    sizes = [float(_wide(t).abs().max()) for t in right.values() if t.numel()]
    scale = max((size for size in sizes if 0 < size < math.inf), default=1.0)
    for place, expected in right.items():
        got, wide = _wide(mine[place]), _wide(expected)
        wide = wide.to(got.device)
        nans += int(got.isnan().sum())
        infs += int(got.isinf().sum())
        if mine[place].dtype == expected.dtype:  # integers beyond 2^53 too
            exact &= torch.equal(mine[place], expected.to(mine[place].device))
        else:
            exact &= bool((got == wide).all())
        if got.numel():
            gap = (got - wide).abs()
            squared_difference += float((gap / scale).square().sum())
            squared_reference += float((wide.abs() / scale).square().sum())
            largest = max(largest, float(gap.max()))
    if nans or infs:
        return Error(math.nan, math.nan, nans, infs)
    if squared_reference == 0:
        return Error(0.0 if exact else math.inf, largest, exact=exact)
    relative = math.sqrt(squared_difference / squared_reference)
    return Error(relative, largest, exact=exact)


def _copied(output) -> dict[str, torch.Tensor]:
    copies = {place: tensor.detach().clone() for place, tensor in tensors(output)}
    if not copies:
        raise ValueError(f"there is nothing to compare in {output!r}")
    return copies


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "mps":
        tensor = tensor.cpu()  # MPS has no FP64
    return (
        tensor.detach()
        .to_dense()
        .to(torch.complex128 if tensor.is_complex() else torch.float64)
    )


# ----------------------------------------------------------------- conditions and units


def conditions() -> dict[str, str]:
    """Say where and when: device, torch version, ISO date."""
    here = machine.detect()
    today = datetime.date.today().isoformat()
    return {"device": here.name, "torch": here.torch_version, "date": today}


def _median_interval(numbers: list[float]) -> tuple[float, float]:
    """Return the 99 % confidence interval of a median: two of the sorted numbers.

    The k-th smallest and k-th largest enclose it, unless fewer than k of n numbers fall
    on one side, each with probability 1/2 (Conover, Nonparametric Statistics, 3.2).
    """
    n, k, outside = len(numbers), 0, 2 * 0.5 ** len(numbers)
    while outside <= 0.01:
        k += 1
        outside += 2 * math.comb(n, k) * 0.5**n
    ordered = sorted(numbers)
    return (ordered[k - 1], ordered[n - k]) if k else (0.0, math.inf)


def _quartiles(numbers) -> tuple[float, float]:
    if len(numbers) < 2:
        return (numbers[0], numbers[0]) if numbers else (math.nan, math.nan)
    low, _, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return low, high


def _short(number: float) -> str:
    """Write a number with three digits, and without an exponent up to a million."""
    return f"{number:.0f}" if 999.5 <= abs(number) < 1e6 else f"{number:.3g}"


@checked
def show_seconds(seconds: float) -> str:
    """Write a duration with a unit that fits: "12.3 µs"; "-" for NaN."""
    if seconds != seconds or seconds == 0:
        return "0 s" if seconds == 0 else "-"
    units = (("ps", 1e-12), ("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3))
    for unit, size in units:
        if abs(seconds) < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{_short(seconds)} s"


@checked
def show_bytes(size: float | None) -> str:
    """Write an amount of memory in a unit that fits: "12.5 MiB"; "-" for None/NaN."""
    if size is None or size != size:
        return "-"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size) >= 2**power:
            return f"{_short(size / 2**power)} {unit}"
    return f"{size:.0f} B"


def _check_arguments(variants, reference, mode, seconds, rounds) -> None:
    if not isinstance(variants, Mapping) or not variants:
        raise TypeError(f"variants={quoted(variants)}: give a dict of name → callable")
    for name, call in variants.items():
        if not isinstance(name, str):
            raise TypeError(f"variant name {name!r}: give a string")
        if not callable(call):
            raise TypeError(f"variant {name!r} is {quoted(call)}: give a callable")
    if not isinstance(mode, str) or mode not in GRAD_MODES:
        raise ValueError(f"mode={quoted(mode)}: give one of {', '.join(GRAD_MODES)}")
    if not isinstance(rounds, int) or not 3 <= rounds < 2**31:
        raise ValueError(f"rounds={quoted(rounds)}: give an integer of at least 3")
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < 1e9:
        raise ValueError(
            f"seconds={quoted(seconds)}: give a positive number of seconds"
        )
    if reference is not None:
        difference(reference, reference)  # raises where it is not finite
