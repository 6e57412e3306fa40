"""Compare variants of one computation: time, error and memory, side by side.

The clock is `torch.utils.benchmark.Timer`, which waits for the GPU before and after a
block of calls. What is added here is what makes two numbers comparable: variants take
turns (A B, B A, A B, …), so that a drifting clock hits all of them; the speedup is the
ratio within a round; and no time stands without the error of the answer it paid for.
"""

import dataclasses
import datetime
import functools
import inspect
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.utils import benchmark

from helpers import machine

WARMUP_SECONDS = 1.0  # at most, per variant, besides the first call
RESOLUTION = 0.02  # identical callables differ by this much: no smaller gain is claimed
GRAD_MODES = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
}


@dataclasses.dataclass(frozen=True)
class Error:
    """Say how far an output is from the reference, computed in FP64.

    Attributes:
        relative: ‖output - reference‖₂ / ‖reference‖₂; NaN if the output is not finite.
        largest: the largest absolute difference; NaN likewise.
        nans, infs: how many there are in the output.
        exact: whether every element is equal.
    """

    relative: float
    largest: float
    nans: int = 0
    infs: int = 0
    exact: bool = False

    def __str__(self) -> str:
        if self.nans or self.infs:
            counts = ((self.nans, "NaN"), (self.infs, "Inf"))
            return ", ".join(f"{n:,} {what}" for n, what in counts if n)
        return "0 (exact)" if self.exact else f"{self.relative:.1e}"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Hold a speedup, baseline time ÷ time: the median, and where most rounds lie.

    ``low`` and ``high`` are the 10th and 90th percentile of the rounds. The quartiles
    would be too narrow a judge: of forty pairs of identical callables, one has three
    quarters of its 21 rounds on one side of 1 by chance alone.
    """

    median: float
    low: float
    high: float

    @property
    def measurable(self) -> bool:
        """Say whether nearly all rounds agree, and on more than the resolution."""
        covers_one = self.low <= 1 <= self.high
        return not covers_one and abs(math.log(self.median)) > RESOLUTION

    def __str__(self) -> str:
        if math.isnan(self.median):
            return "nothing to compare with"
        if not self.measurable:
            return "no measurable difference"
        return f"{self.median:.3g}× ({self.low:.3g} to {self.high:.3g})"


@dataclasses.dataclass(frozen=True)
class Result:
    """Hold what was measured of one variant; seconds and bytes.

    Attributes:
        seconds: time per call of each round, in the order of the rounds.
        cold_s: the first call, with whatever it loads, compiles or tunes.
        error: against the reference, None if there was nothing to compare.
        peak_bytes: GPU memory taken on top during a call; None on a CPU.
        weight_bytes: parameters and buffers of the modules that the variant refers to.
        failure: why there is no measurement, "" if there is one.
    """

    name: str
    seconds: tuple[float, ...] = ()
    cold_s: float = math.nan
    error: Error | None = None
    peak_bytes: int | None = None
    weight_bytes: int = 0
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
        return _percentiles(self.seconds, 25, 75)


class Comparison(Mapping):
    """Hold the results of one comparison, by variant; shown as a table.

    ``comparison["BF16"]`` is a ``Result``; ``comparison.speedup("BF16")`` a ``Ratio``
    against the first variant; ``conditions`` says where and when it was measured.
    """

    def __init__(self, results: list[Result], conditions: dict):
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

    def speedup(self, name: str) -> Ratio:
        """Return baseline time ÷ the variant's time; NaN where either failed."""
        pairs = zip(self.baseline.seconds, self[name].seconds, strict=False)
        ratios = [base / mine for base, mine in pairs]
        if not ratios:
            return Ratio(math.nan, math.nan, math.nan)
        ends = _percentiles(ratios, 10, 90)
        return Ratio(statistics.median(ratios), *ends)

    def table(self):
        """Return a pandas DataFrame for reading: one row a variant, units in the text.

        Columns in which no variant has anything are left out.
        """
        import pandas

        rows = {}
        for name, result in self.items():
            if result.failure:
                rows[name] = {"time": "failed", "speedup": result.failure}
                continue
            low, high = result.quartiles_s
            spread = f"{(high - low) / result.median_s:.0%}" if result.n > 1 else "-"
            speedup = "baseline" if result is self.baseline else self.speedup(name)
            rows[name] = {
                "time": show_seconds(result.median_s),
                "spread (IQR)": spread,
                "speedup": str(speedup),
                "error": str(result.error or "-"),
                "extra memory": show_bytes(result.peak_bytes),
                "weights": show_bytes(result.weight_bytes or None),
                "first call": show_seconds(result.cold_s),
            }
        table = pandas.DataFrame.from_dict(rows, orient="index").fillna("-")
        return table.loc[:, (table != "-").any()]

    def __repr__(self) -> str:
        return self.table().to_string()

    def _repr_html_(self) -> str:
        return self.table().to_html()


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
        rounds get fewer, down to 5.

    Raises:
        TypeError, ValueError: an argument cannot be used; the message quotes it.
    """
    _check_arguments(variants, reference, mode, seconds, rounds)
    right = None if reference is None else dict(tensors(reference))
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
        rounds = max(min(rounds, int(affordable)), min(rounds, 5))
        samples = _take_turns(blocks, rounds)
    for name, times in samples.items():
        if name in failures:
            changes = {"failure": failures[name]}
        else:
            changes = {"seconds": tuple(times)}
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
    clock, calls = timer(call), 0

    def time_block() -> float:
        nonlocal calls
        if name in failures:
            return math.nan
        try:
            if not calls:
                calls = max(1, int(seconds / max(clock.timeit(1).median, 1e-9)))
            return clock.timeit(calls).median
        except Exception as failure:
            failures[name] = _reason(failure)
            return math.nan

    return time_block


def _first_calls(name: str, call: Callable, right: dict | None) -> tuple[Result, dict]:
    """Make the cold call, check the answer, warm up and measure memory."""
    weights = weight_bytes(call)
    try:
        start = time.perf_counter()
        output = call()
        synchronize()
        cold_s = time.perf_counter() - start
        # Compare and copy now: a CUDA graph overwrites its output at the next call.
        output = {place: t.detach().clone() for place, t in tensors(output)}
        error = _difference(output, output if right is None else right)
        _warm_up(call)
        peak = _peak_bytes(call)
    except Exception as failure:
        if machine.detect().device == "cuda":
            torch.cuda.empty_cache()
        return Result(name, weight_bytes=weights, failure=_reason(failure)), None
    return Result(name, (), cold_s, error, peak, weights), output


def _reason(failure: Exception) -> str:
    words = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {words[:200]}"


def _warm_up(call: Callable) -> None:
    """Call until three times in a row no call was a tenth faster than the best."""
    best, steady, start = math.inf, 0, time.perf_counter()
    while steady < 3 and time.perf_counter() - start < WARMUP_SECONDS:
        began = time.perf_counter()
        call()
        synchronize()
        took = time.perf_counter() - began
        steady = 0 if took < 0.9 * best else steady + 1
        best = min(best, took)


def timer(call: Callable) -> benchmark.Timer:
    """Make a Timer of a call with the program's own thread count, not with one."""
    return benchmark.Timer(
        "call()", globals={"call": call}, num_threads=torch.get_num_threads()
    )


def synchronize() -> None:
    """Wait until the GPU has done all that was asked of it; nothing to do on a CPU."""
    device = machine.detect().device
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def _peak_bytes(call: Callable) -> int | None:
    """Return the GPU memory that a call takes on top of what is allocated, in bytes."""
    if machine.detect().device != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    synchronize()
    return torch.cuda.max_memory_allocated() - before


def weight_bytes(call: Callable) -> int:
    """Add up the parameters and buffers of all modules that a callable refers to.

    Modules are found in the callable itself, what it is bound to, its closure and the
    globals that it names. Storage that is shared is counted once.
    """
    seen, found = [], [call, getattr(call, "__self__", None)]
    function = call
    if isinstance(call, functools.partial):
        function = call.func
        found += [function, *call.args, *call.keywords.values()]
    function = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isfunction(function):
        names = inspect.getclosurevars(function)
        found += [function, *names.nonlocals.values(), *names.globals.values()]
    for thing in found:
        if isinstance(thing, torch.nn.Module):
            seen += [*thing.parameters(), *thing.buffers()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in seen}
    return sum(storage.nbytes() for storage in storages.values())


# -------------------------------------------------------------------------- the answers


def tensors(output) -> Iterator[tuple[str, torch.Tensor]]:
    """Walk through an output: yield (place, tensor) for each tensor or number in it.

    Raises:
        TypeError: it holds something that is neither a number nor a tensor.
    """
    if isinstance(output, torch.Tensor):
        yield "", output
    elif isinstance(output, bool | int | float):
        yield "", torch.tensor(output)
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
            f"cannot compare {type(output).__name__}: give tensors, numbers, or "
            "tuples, lists, dicts or dataclasses of them"
        )


def difference(output, reference) -> Error:
    """Compare an output with the right answer, in FP64 over all tensors together.

    Raises:
        ValueError: the structures or shapes differ, or the reference is not finite.
    """
    mine, right = dict(tensors(output)), dict(tensors(reference))
    for place, expected in right.items():
        if not _wide(expected).isfinite().all():
            raise ValueError(f"the reference has NaN or Inf {place and f'at {place}'}")
    return _difference(mine, right)


def _difference(mine: dict, right: dict) -> Error:
    shapes = [{k: tuple(t.shape) for k, t in side.items()} for side in (mine, right)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"output has shapes {shapes[0]}, reference {shapes[1]}")
    squared_difference = squared_reference = largest = 0.0
    nans, infs, exact = 0, 0, True
    for place, expected in right.items():
        got, expected = _wide(mine[place]), _wide(expected).to(mine[place].device)
        nans += int(got.isnan().sum())
        infs += int(got.isinf().sum())
        exact = exact and bool((got == expected).all())
        if got.numel():
            gap = (got - expected).abs()
            squared_difference += float(gap.square().sum())
            squared_reference += float(expected.abs().square().sum())
            largest = max(largest, float(gap.max()))
    if nans or infs:
        return Error(math.nan, math.nan, nans, infs)
    if squared_reference == 0:
        return Error(0.0 if exact else math.inf, largest, exact=exact)
    relative = math.sqrt(squared_difference / squared_reference)
    return Error(relative, largest, exact=exact)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "mps":
        tensor = tensor.cpu()  # MPS has no FP64
    return tensor.detach().to(
        torch.complex128 if tensor.is_complex() else torch.float64
    )


# ----------------------------------------------------------------- conditions and units


def conditions() -> dict[str, str]:
    """Say where and when: device, torch version, ISO date."""
    here = machine.detect()
    today = datetime.date.today().isoformat()
    return {"device": here.name, "torch": here.torch_version, "date": today}


def _percentiles(numbers, low: int, high: int) -> tuple[float, float]:
    if len(numbers) < 2:
        return (numbers[0], numbers[0]) if numbers else (math.nan, math.nan)
    cuts = statistics.quantiles(numbers, n=100, method="inclusive")
    return cuts[low - 1], cuts[high - 1]


def show_seconds(seconds: float) -> str:
    """Write a duration with a unit that fits: "12.3 µs"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds == seconds else "-"


def show_bytes(size: float | None) -> str:
    """Write an amount of memory with a unit that fits: "12.5 MiB"; "-" for None."""
    if size is None:
        return "-"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size) >= 2**power:
            return f"{size / 2**power:.3g} {unit}"
    return f"{size:.0f} B"


def _check_arguments(variants, reference, mode, seconds, rounds) -> None:
    if not isinstance(variants, Mapping) or not variants:
        raise TypeError(f"variants={variants!r}: give a dict of name → callable")
    for name, call in variants.items():
        if not callable(call):
            raise TypeError(f"variant {name!r} is {call!r}: give a callable, lambda: …")
    if mode not in GRAD_MODES:
        raise ValueError(f"mode={mode!r}: give one of {', '.join(GRAD_MODES)}")
    if not isinstance(rounds, int) or rounds < 3:
        raise ValueError(f"rounds={rounds!r}: give an integer of at least 3")
    if not isinstance(seconds, int | float) or not seconds > 0:
        raise ValueError(f"seconds={seconds!r}: give a positive number of seconds")
    if reference is not None:
        difference(reference, reference)  # raises where it is not finite
