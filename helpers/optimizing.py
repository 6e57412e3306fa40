"""Make a model fast: apply a plan, or search for the fastest plan that is still right.

A ``Plan`` is the course as data: precision, memory layout, folding, compiling, a CUDA
graph. ``apply`` makes a callable of a plan and a model, and leaves the model and every
global switch as they were. ``search`` tries the plans that make sense on this machine,
drops those whose answers are wrong, and measures the others in turns. The best one
writes itself down as code that needs nothing of this package: ``plan.code()``.
"""

import contextlib
import copy
import dataclasses
import functools
import gc
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from helpers import comparing, compiling, graphs, machine, switches
from helpers._arguments import check, checked, quoted
from helpers.comparing import Comparison, Ratio, Result, compare

DTYPES = {"FP32": torch.float32, "TF32": torch.float32}
DTYPES |= {"BF16": torch.bfloat16, "FP16": torch.float16}
PRECISIONS = (*DTYPES, "BF16 autocast", "FP16 autocast")
MODES = ("", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
RECORDING = ("reduce-overhead", "max-autotune")  # modes with CUDA graphs of their own
MOST_GRAPHS = 16  # that one plan captures, one for each shape of input
KEPT = 6  # plans kept ready for the final, at most
CLOSE = 0.85  # of the fastest one's speed: slower ones are not


@checked
@dataclasses.dataclass(frozen=True)
class Plan:
    """Name the optimizations to apply to a model; by default none, and FP32 is FP32.

    Attributes:
        precision: one of ``PRECISIONS``. "FP32" forbids TF32, "TF32" allows it, both
            for products and for convolutions. "BF16" and "FP16" cast weights and
            inputs; with "autocast", PyTorch casts operation by operation.
        channels_last: store images and convolution weights with the channels innermost.
        folded: batch norms are folded into the convolutions before them.
        fast_path: allow the fused attention and encoder layers of eval mode.
        cudnn_benchmark: let cuDNN time its algorithms on each new shape.
        compile: a mode of ``torch.compile``; "" leaves the model eager.
        dynamic: of ``torch.compile``: True for shapes that vary, None lets it see.
        graph: capture a CUDA graph for each shape of input, by ``helpers.graphs``.

    Raises:
        TypeError, ValueError: a value is none of these, or two exclude each other.
    """

    precision: str = "FP32"
    channels_last: bool = False
    folded: bool = False
    fast_path: bool = True
    cudnn_benchmark: bool = False
    compile: str = ""
    dynamic: bool | None = None
    graph: bool = False

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision!r}: give one of {PRECISIONS}")
        if self.compile not in MODES:
            raise ValueError(f"compile={self.compile!r}: give one of {MODES}")
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            unset = field.name == "dynamic" and value is None
            if field.name != "compile" and not (isinstance(value, bool) or unset):
                raise TypeError(f"{field.name}={value!r}: give True or False")
        if self.graph and self.compile in RECORDING:
            raise ValueError(f"graph=True: {self.compile!r} records graphs by itself")
        if self.dynamic is not None and not self.compile:
            raise ValueError(
                f"dynamic={self.dynamic!r}: for compiled plans, not compile=None"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """Return what the plan does, in words, in the order in which it is done."""
        words = {
            "folded": self.folded,
            "channels_last": self.channels_last,
            "no fast path": not self.fast_path,
            "cuDNN benchmark": self.cudnn_benchmark,
            "compiled": self.compile == "default",
            self.compile: self.compile not in ("", "default"),
            f"dynamic={self.dynamic}": self.dynamic is not None,
            "graph": self.graph,
        }
        return (self.precision, *(word for word, true in words.items() if true))

    def __str__(self) -> str:
        return ", ".join(self.parts)

    @property
    def complexity(self) -> int:
        """Count what there is to explain and to maintain: 1 a part, 0 for FP32 alone.

        Compiling and graphs count twice, for they cost time, memory and care; modes
        that record graphs, three times.
        """
        parts = len(self.parts) - (self.precision == "FP32")
        return parts + bool(self.compile) + self.graph + (self.compile in RECORDING)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype that weights and floating inputs are cast to."""
        return DTYPES.get(self.precision, torch.float32)

    @property
    def autocast(self) -> torch.dtype | None:
        """Return the dtype of autocast, None without it."""
        name, _, autocast = self.precision.partition(" ")
        return DTYPES[name] if autocast else None

    def code(self) -> str:
        """Return Python code of a function ``optimized(model)`` that does the same.

        It needs PyTorch alone. It sets the global switches for the whole program, where
        ``apply`` sets them around each call; and its CUDA graphs take tensors as
        positional arguments only.
        """
        return _code(self)


# ------------------------------------------------------------------------ apply a plan


def apply(plan: Plan, model: nn.Module) -> Callable:
    """Return a callable that does what the model does, the way the plan says.

    It is called as the model is. Floating tensors among the inputs are cast, token ids
    and the like stay what they are; what comes out has the structure that the model
    gives it, in the plan's dtype, and is not overwritten by later calls. Gradients are
    off. The model is copied, not changed; switches are set during a call only.

    Args:
        model: any ``nn.Module``; the copy is put in eval mode. In 16 bits, buffers are
            cast like weights; integers and complex numbers stay.

    Raises:
        TypeError: an argument is of another kind.
        RuntimeError, at a call: what the plan needs is missing here, the model cannot
            be folded, compiled or captured, or more than 16 shapes were captured.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"need a Plan, got {quoted(plan)}")
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"need an nn.Module, got {type(model).__name__}: {quoted(model)}"
        )
    mine = prepared(plan, model)
    run = mine
    if plan.compile:
        run = torch.compile(mine, mode=plan.compile, dynamic=plan.dynamic)
    settings = _settings(plan, _device(mine))
    if plan.graph:
        return _Graphs(plan, run, settings)

    def call(*inputs, **named):
        with settings():
            inputs, named = _cast(plan, inputs), _cast(plan, named)
            output = run(*inputs, **named)
            if plan.compile in RECORDING:  # the next replay would overwrite it
                output = _mapped(torch.clone, output)
            return output

    return call


@checked
def prepared(plan: Plan, model: nn.Module) -> nn.Module:
    """Return a copy of a model with the plan's weights: folded, cast, laid out."""
    mine = copy.deepcopy(model).eval().requires_grad_(False)
    if plan.folded:
        mine = fuse(mine)
    # `mine.to(dtype)` would also turn complex numbers into real ones.
    mine._apply(lambda x: x.to(plan.dtype) if x.is_floating_point() else x)
    if plan.channels_last:
        mine = mine.to(memory_format=torch.channels_last)
    return mine


def _settings(plan: Plan, device: str) -> Callable:
    """Return a context manager for a call: no gradients, the switches, autocast."""
    wanted = {}
    if plan.dtype == torch.float32:
        tf32 = plan.precision == "TF32"
        wanted = {"matmul": "high" if tf32 else "highest", "cudnn": tf32}
    wanted |= {} if plan.fast_path else {"fast_path": False}
    wanted |= {"benchmark": True} if plan.cudnn_benchmark else {}
    if not wanted:
        return torch.inference_mode
    # Inside a capture, casts that were cached outside of it would be lost.
    options = {"dtype": plan.autocast, "cache_enabled": not plan.graph}
    autocast = functools.partial(torch.autocast, device, **options)

    @contextlib.contextmanager
    def settings():
        with torch.inference_mode(), switches.around_call(**wanted):
            with autocast() if plan.autocast else contextlib.nullcontext():
                yield

    return settings


def _cast(plan: Plan, tree):
    """Cast the floating tensors in inputs; images get the plan's memory layout."""

    def change(x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        if plan.channels_last and x.dim() == 4:
            return x.to(plan.dtype, memory_format=torch.channels_last)
        return x.to(plan.dtype)

    if type(tree) is tuple and all(type(x) is torch.Tensor for x in tree):
        return tuple(map(change, tree))  # the same, at a tenth of the cost
    return tree_map(change, tree)


class _Graphs:
    """Call a function through CUDA graphs, one for each shape of input.

    A call copies its inputs in and its output out: three launches. ``in_place`` is the
    one in between, for a program that fills the buffers itself, and has done with the
    output before the next call.
    """

    def __init__(self, plan: Plan, run: Callable, settings: Callable):
        self.plan, self.run, self.settings = plan, run, settings
        self.known, self.latest = {}, None
        self.__wrapped__ = run  # so that its weights are found

    def __call__(self, *inputs, **named):
        leaves, spec = inputs, None  # flattening is spared where it can be
        if named or not all([type(x) is torch.Tensor for x in inputs]):
            leaves, spec = tree_flatten((inputs, named))
        # Everything but the values in tensors is frozen, so it is part of the key.
        form = [
            (x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else x
            for x in leaves
        ]
        known = self.known.get((spec, *form))
        if known is None:
            known = self.known[spec, *form] = self._capture(leaves, spec)
        replay, self.latest = known
        return replay(leaves)

    def in_place(self, *inputs, **named) -> "graphs.Captured":
        """Return the graph for inputs of this form: its buffers, and ``replay``."""
        self(*inputs, **named)
        return self.latest

    def _capture(self, leaves, spec) -> tuple[Callable, "graphs.Captured"]:
        """Capture a graph for inputs of this form; return what replays it on others."""
        if len(self.known) >= MOST_GRAPHS:
            raise RuntimeError(
                f"{MOST_GRAPHS} shapes of input have a graph, and here is another one: "
                "a plan with graph=True is for shapes that stay the same"
            )
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        structure = None  # of the output: its tensors are the graph's

        def flat(*tensors):
            nonlocal structure
            full, outputs = list(leaves), []
            for place, tensor in zip(places, tensors, strict=True):
                full[place] = tensor
            with self.settings():
                inputs, named = full, {}
                if spec is not None:
                    inputs, named = tree_unflatten(full, spec)
                structure = self.run(*inputs, **named)
                _mapped(lambda x: (outputs.append(x), x)[1], structure)
            return outputs

        with torch.inference_mode():
            tensors = _cast(self.plan, [leaves[place] for place in places])
        graph = graphs.capture(flat, *tensors)
        alone = isinstance(structure, torch.Tensor)

        buffers, launch = list(zip(graph.inputs, places, strict=True)), graph.graph

        def replay(new_leaves):
            for buffer, place in buffers:
                x = new_leaves[place]
                buffer.copy_(x.detach() if x.requires_grad else x)  # this casts, too
            launch.replay()
            if alone:
                return graph.output[0].clone()
            copies = iter([x.clone() for x in graph.output])
            return _mapped(lambda _: next(copies), structure)

        return replay, graph


def _mapped(change: Callable, tree):
    """Apply a function to each tensor in tuples, lists, dicts and dataclasses."""

    def leaf(x):
        if isinstance(x, torch.Tensor):
            return change(x)
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            names = [field.name for field in dataclasses.fields(x)]
            values = {name: _mapped(change, getattr(x, name)) for name in names}
            return dataclasses.replace(x, **values)
        return x

    return tree_map(leaf, tree)


def _device(model: nn.Module) -> str:
    tensors = (*model.parameters(), *model.buffers())
    return next((x.device.type for x in tensors), machine.detect().device)


# ---------------------------------------------------------------------------- search


@checked
@dataclasses.dataclass(frozen=True)
class Trial:
    """Hold what became of one plan.

    Attributes:
        plan: the one that was tried.
        result: its time, error and memory; None if it was not tried.
        speedup: over FP32, taken in turns with it.
        verdict: "" if it is fast and right enough to be recommended; else the reason.
    """

    plan: Plan
    result: Result | None
    speedup: Ratio
    verdict: str = ""


@checked
@dataclasses.dataclass(frozen=True)
class Search:
    """Hold a finished search; shown as a table, fastest first.

    Attributes:
        best: the plan that is recommended.
        trials: all plans, in the order in which they came up.
        final: the fastest ones and FP32 in turns, from which the best was chosen.
        max_error: the budget, relative to FP32.
        seconds: how long it took.
        interrupted: whether it was stopped early.
    """

    best: Plan
    trials: tuple[Trial, ...]
    final: Comparison
    max_error: float
    seconds: float
    interrupted: bool = False

    def __post_init__(self):
        if str(self.best) not in self.final:
            raise ValueError(f"best={self.best!r}: give a variant of the final")

    @property
    def speedup(self) -> Ratio:
        """Return how many times as fast as FP32 the best plan is."""
        return self.final.speedup(str(self.best))

    def code(self) -> str:
        """Return the best plan as code to paste; see ``Plan.code``."""
        return self.best.code()

    def table(self):
        """Return a pandas DataFrame for reading: one row a plan, fastest first."""
        import pandas

        def place(trial):
            return (trial.verdict != "", _seconds(trial))

        rows = {}
        for trial in sorted(self.trials, key=place):
            it = trial.result or Result(str(trial.plan))
            first = trial.plan == Plan()
            measured = bool(it.seconds)
            verdict = trial.verdict or "right"
            if it.name in self.final and not trial.verdict:
                gain = self.final.speedup(it.name, over=str(self.best))
                verdict = "right" if gain.measurable else "as fast as the best"
            rows[str(trial.plan)] = {
                "speedup": "baseline" if first else str(trial.speedup),
                "time": comparing.show_seconds(it.median_s),
                "error": str(it.error or "-"),
                "weights": comparing.show_bytes(it.weight_bytes or None),
                "extra memory": comparing.show_bytes(it.peak_bytes),
                "first call": comparing.show_seconds(it.cold_s),
                "verdict": "best" if trial.plan == self.best else verdict,
            }
            rows[str(trial.plan)] |= {} if measured else {"speedup": "-"}
        return pandas.DataFrame.from_dict(rows, orient="index")

    def __repr__(self) -> str:
        return self.table().to_string()

    def _repr_html_(self) -> str:
        return comparing.markup(self.table())


def search(
    model: nn.Module,
    example_inputs,
    max_error: float = 2e-2,
    max_seconds: float = 120.0,
    varying_shapes: bool = False,
    plans: Iterable[Plan] | None = None,
    progress: bool = True,
) -> Search:
    """Find the fastest plan for a model on this machine whose answers are right enough.

    Each plan is tried alone, in turns with FP32, and leaves the memory again; those
    that come close to the fastest are kept for a final, all in turns. There, a plan
    must be measurably faster than every simpler choice to be the best. An interrupt
    (Ctrl+C, or the stop button) ends the search early, and what was found is returned.

    The search forgets what ``torch.compile`` has compiled in this process; it compiles
    again when called again. A plan that compiles cannot be stopped halfway, so the last
    one may run over the time. "max-autotune", which can take minutes, is not tried
    unless ``plans`` names it.

    Args:
        model: on the device to search for.
        example_inputs: a tensor, a tuple of positional or a dict of named arguments:
            sizes and values as they will be. What overflows FP16 with others only is
            not seen.
        max_error: the budget: ‖output - FP32's‖₂ ÷ ‖FP32's‖₂, for the example and for
            the same numbers shifted by one place, which no graph was captured with.
        max_seconds: no plan is begun that would take the search beyond.
        varying_shapes: leave out what must prepare for each shape anew.
        plans: try these instead of those that make sense here.
        progress: show a progress bar.

    Raises:
        TypeError, ValueError: an argument cannot be used, or the model fails in FP32.
    """
    args, named = _arguments(example_inputs)
    _check_search(model, max_error, max_seconds)
    check("varying_shapes", varying_shapes, bool)
    check("progress", progress, bool)
    check("plans", plans, Iterable[Plan] | None)
    stages = STAGES
    if plans is not None:
        plans = list(plans)
        for plan in plans:
            if not isinstance(plan, Plan):
                raise TypeError(f"plans has {quoted(plan)}: give Plans")
        stages = [lambda hunt: plans]
    with compiling.fresh(), compiling.quiet(), _bar(progress) as bar:
        hunt = _Hunt(model, args, named, max_error, max_seconds, varying_shapes)
        try:
            for stage in stages:
                fresh = [p for p in dict.fromkeys(stage(hunt)) if p not in hunt.trials]
                bar.total = bar.n + len(fresh)
                for plan in fresh:
                    bar.set_postfix_str(str(plan))
                    hunt.attempt(plan)
                    bar.update()
            bar.set_postfix_str("final")
            hunt.take_final()
            bar.set_postfix_str("done")
        except KeyboardInterrupt:
            hunt.interrupted = True
    return hunt.outcome()


def choose(final: Comparison, plans: Mapping[str, Plan]) -> Plan:
    """Return the best plan of a comparison: nothing more complex without a gain.

    From the simplest on, each plan must be measurably faster than the best before it to
    take its place. Between equally simple ones it is enough that the interval of the
    ratio excludes 1; where it does not, the more exact one is chosen.

    Args:
        final: FP32 first.
        plans: those among its variants, by name; all of them right enough.
    """
    check("final", final, Comparison)
    check("plans", plans, Mapping[str, Plan])
    unknown = [name for name in plans if name not in final]
    if unknown or final.baseline.name not in plans:
        raise ValueError(
            f"plans={quoted(plans)}: give those of {list(final)}, with the first one"
        )

    def order(name):
        error = final[name].error
        return (plans[name].complexity, error.relative if error else 0.0, name)

    best = final.baseline.name
    for name in sorted((name for name in plans if final[name].seconds), key=order):
        gain = final.speedup(name, over=best)
        as_simple = plans[name].complexity == plans[best].complexity
        if gain.low > 1 and (as_simple or gain.measurable):
            best = name
    return plans[best]


class _Hunt:
    """Be a search under way: what was tried, and what is kept for the final."""

    def __init__(self, model, args, named, max_error, max_seconds, varying_shapes):
        self.model, self.args, self.named = model, args, named
        self.max_error, self.max_seconds = max_error, max_seconds
        self.fixed_shapes, self.interrupted = not varying_shapes, False
        self.start = time.perf_counter()
        self.trials, self.pairs, self.kept = {}, {}, {}
        first = Plan()
        try:
            self.fp32 = apply(first, model)
            self.right = self.fp32(*args, **named)
            comparing.difference(self.right, self.right)  # raises on NaN and Inf
        except Exception as error:
            on = f"on {quoted([*args, *named.values()])}"
            raise ValueError(
                f"the model fails in FP32: {comparing.reason(error)}, {on}"
            ) from error
        self.other, self.other_right = self._shifted()
        self.final = compare({str(first): self._call(self.fp32)}, rounds=9, seconds=0.1)
        result = self.final.baseline
        self.trials[first] = Trial(first, result, self.final.speedup(str(first)))
        # The longest trial yet, of compiled plans and of others.
        self.longest_s = {True: 0.0, False: time.perf_counter() - self.start}

    def _call(self, run: Callable) -> Callable:
        return functools.partial(run, *self.args, **self.named)

    def _shifted(self):
        """Return other inputs of the same shapes, and FP32's answer; None, None if the
        model does not take them."""

        def shift(x):
            return x.roll(1) if isinstance(x, torch.Tensor) and x.numel() else x

        try:
            args, named = tree_map(shift, (self.args, self.named))
            right = self.fp32(*args, **named)
            comparing.difference(right, right)
        except Exception:  # such as offsets, which must be in order
            return None, None
        return (args, named), right

    def attempt(self, plan: Plan) -> None:
        """Try one plan; note what becomes of it, and keep it if it is fast."""
        gone = time.perf_counter() - self.start
        finalists = [_seconds(self.trials[each]) for each in (Plan(), *self.kept)]
        final_s = sum(1.0 + 20 * seconds for seconds in finalists)
        expected = max(self.longest_s[False], self.longest_s[bool(plan.compile)])
        why = _missing(plan)
        if not why and gone + expected + final_s > self.max_seconds:
            why = f"the search may take {self.max_seconds:g} s"
        if why:
            none = Ratio(math.nan, math.nan, math.nan)
            self.trials[plan] = Trial(plan, None, none, f"not tried: {why}")
            return
        began, name = time.perf_counter(), str(plan)
        self._make_room()
        try:
            run = apply(plan, self.model)
        except Exception as error:
            result = Result(name, failure=comparing.reason(error))
            pair = Comparison([self.final.baseline, result], self.final.conditions)
        else:
            calls = {"FP32": self._call(self.fp32), name: self._call(run)}
            pair = compare(calls, self.right, rounds=9, seconds=0.1)
            pair = self._checked(pair, name, run)
        self.pairs[plan] = pair
        verdict = _verdict(pair[name], self.max_error)
        self.trials[plan] = Trial(plan, pair[name], pair.speedup(name), verdict)
        if not verdict:
            self.kept[plan] = run
        run = calls = None
        self._drop_slow()
        kind = bool(plan.compile)
        self.longest_s[kind] = max(self.longest_s[kind], time.perf_counter() - began)

    def _checked(self, pair: Comparison, name: str, run: Callable) -> Comparison:
        """Take the larger error of the example's and the other inputs'."""
        result = pair[name]
        if self.other is None or result.failure:
            return pair
        args, named = self.other
        try:
            error = comparing.difference(run(*args, **named), self.other_right)
        except Exception as failure:
            result = Result(
                name, failure=f"on other inputs: {comparing.reason(failure)}"
            )
        else:
            worse = error.nans or error.infs or error.relative > result.error.relative
            steady = result.error.steady
            error = dataclasses.replace(error, steady=steady)
            result = dataclasses.replace(result, error=error if worse else result.error)
        return Comparison([pair.baseline, result], pair.conditions)

    def _ranked(self, plans) -> list[Plan]:
        """Sort plans by their own times, the fastest first.

        Not by their speedups: FP32's time, if it is the CPU's for launching, moves more
        from trial to trial than theirs.
        """
        return sorted(plans, key=lambda plan: _seconds(self.trials[plan]))

    def _drop_slow(self) -> None:
        """Let go of the plans that cannot win, and free their memory."""
        fastest, *others = self._ranked(self.kept) or [None]
        for place, plan in enumerate(others, 1):
            most = _seconds(self.trials[fastest]) / CLOSE
            if place >= KEPT or (place > 1 and _seconds(self.trials[plan]) > most):
                del self.kept[plan]
        _free()

    def _make_room(self) -> None:
        """Where memory is short, keep the fastest plan alone."""
        weights = comparing.weight_bytes(self.fp32)
        peak = self.final.baseline.peak_bytes or 0
        for plan in self._ranked(self.kept)[:0:-1]:
            if machine.free_bytes() > 3 * weights + 2 * peak:
                break
            del self.kept[plan]
            _free()

    def take_final(self) -> None:
        """Measure the plans that were kept, and FP32, in turns."""
        if self.kept:
            calls = {"FP32": self._call(self.fp32)}
            calls |= {str(plan): self._call(run) for plan, run in self.kept.items()}
            self.final = compare(calls, self.right, seconds=0.4)

    def outcome(self) -> Search:
        """Choose the best of the final, or, without one, of the fastest pair."""
        rivals = {plan for plan in self.trials if str(plan) in self.final}
        if len(rivals) == 1 and self.pairs:
            right = [p for p in self.pairs if not self.trials[p].verdict]
            for fastest in self._ranked(right)[:1]:
                self.final, rivals = self.pairs[fastest], rivals | {fastest}
        best = choose(self.final, {str(plan): plan for plan in rivals})
        for plan in rivals:  # the final knows better than the first trial
            name, mine = str(plan), self.trials[plan]
            seconds = self.final[name].seconds
            result = dataclasses.replace(mine.result, seconds=seconds)
            self.trials[plan] = dataclasses.replace(
                mine, result=result, speedup=self.final.speedup(name)
            )
        return Search(
            best,
            tuple(self.trials.values()),
            self.final,
            self.max_error,
            time.perf_counter() - self.start,
            self.interrupted,
        )

    # What the stages ask.

    def right_ones(self, **like) -> list[Plan]:
        """Return the plans so far that are right, fastest first, with these values."""
        found = [
            plan
            for plan, trial in self.trials.items()
            if not trial.verdict
            and all(getattr(plan, name) == value for name, value in like.items())
        ]
        return self._ranked(found)

    def has(self, *kinds) -> bool:
        return any(isinstance(module, kinds) for module in self.model.modules())


# What is tried, stage by stage; each sees what became of those before it.


def _eager(hunt: _Hunt) -> list[Plan]:
    """Each precision in each memory layout."""
    layouts = [{}]
    if hunt.has(nn.Conv2d):
        layouts.append({"channels_last": True})
        if hunt.has(nn.modules.batchnorm._BatchNorm):
            layouts.append({"channels_last": True, "folded": True})
    plain = [Plan(precision) for precision in DTYPES]
    able = [plan for plan in plain if not _missing(plan)]
    return [*plain, *(dataclasses.replace(p, **x) for p in able for x in layouts)]


def _autocast(hunt: _Hunt) -> list[Plan]:
    """Where a cast of the whole model is not right, leave it to autocast."""
    formats = ("BF16", "FP16")
    wrong = [
        f
        for f in formats
        if hunt.trials[Plan(f)].result and hunt.trials[Plan(f)].verdict
    ]
    return [Plan(f"{precision} autocast") for precision in wrong]


def _captured(hunt: _Hunt) -> list[Plan]:
    """A CUDA graph of what is right, where the launches may be what takes the time."""
    if not hunt.fixed_shapes or not machine.supports("CUDA graphs"):
        return []
    fastest = {}  # layout of each precision
    for plan in hunt.right_ones(compile=""):
        fastest.setdefault(plan.precision, dataclasses.replace(plan, graph=True))
    return list(fastest.values())


def _compiled(hunt: _Hunt) -> list[Plan]:
    """The two fastest settings so far, compiled; the first also with its opposite.

    That is attention without the fast path, which the compiler cannot look into, and
    batch norms folded or not: what is best eager need not be best compiled.
    """
    right = [dataclasses.replace(p, graph=False) for p in hunt.right_ones(compile="")]
    # 16 bits first: where launching takes the time, eager times do not show their gain.
    right.sort(key=lambda plan: plan.precision in ("FP32", "TF32"))
    settings = list(dict.fromkeys(right))[:2]
    first = settings[0]
    if hunt.has(nn.MultiheadAttention):
        settings.append(dataclasses.replace(first, fast_path=False))
    if any(trial.plan.folded and trial.result for trial in hunt.trials.values()):
        settings.append(dataclasses.replace(first, folded=not first.folded))
    more = {"compile": "default", "dynamic": None if hunt.fixed_shapes else True}
    return [dataclasses.replace(plan, **more) for plan in settings]


def _recorded(hunt: _Hunt) -> list[Plan]:
    """The compiled ones with CUDA graphs: ours, and the compiler's own."""
    if not hunt.fixed_shapes or not machine.supports("CUDA graphs"):
        return []
    first, *others = hunt.right_ones(compile="default") or [None]
    graphed = [dataclasses.replace(p, graph=True) for p in (first, *others) if p][:2]
    mode = "reduce-overhead"
    return [*graphed, *(dataclasses.replace(p, compile=mode) for p in [first] if p)]


def _tuned(hunt: _Hunt) -> list[Plan]:
    """The fastest one with cuDNN's search."""
    convolves = hunt.has(nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if not convolves or not hunt.fixed_shapes or machine.detect().device != "cuda":
        return []
    return [dataclasses.replace(hunt.right_ones()[0], cudnn_benchmark=True)]


STAGES = (_eager, _autocast, _captured, _compiled, _recorded, _tuned)


# --------------------------------------------------------------------------- details


def _missing(plan: Plan) -> str:
    """Return why this machine cannot, or should not, run a plan; "" if it can."""
    precision = plan.precision.split()[0]
    if precision != "FP32" and not machine.supports(precision):
        return machine.supports(precision).why
    if plan.graph and not machine.supports("CUDA graphs"):
        return machine.supports("CUDA graphs").why
    if plan.compile and not compiling.works():
        return compiling.works().why
    return ""


def _verdict(result: Result, max_error: float) -> str:
    if result.failure:
        return f"failed: {result.failure}"
    error = result.error
    if error.nans or error.infs:
        return f"wrong: {error}"
    if not error.relative <= max_error:
        return f"error over the budget of {max_error:g}"
    return "" if error.steady else "its answer changes from call to call"


def _arguments(example) -> tuple[tuple, dict]:
    if isinstance(example, torch.Tensor):
        return (example,), {}
    if isinstance(example, tuple | list):
        return tuple(example), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    raise TypeError(
        f"example_inputs={quoted(example)}: give a tensor, a tuple of arguments, "
        "or a dict of named ones"
    )


def _check_search(model, max_error, max_seconds) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"need an nn.Module, got {type(model).__name__}: {quoted(model)}"
        )
    for name, value in (("max_error", max_error), ("max_seconds", max_seconds)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not value > 0:
            raise ValueError(f"{name}={quoted(value)}: give a positive number")
    here, there = machine.detect().device, _device(model)
    if here != there:
        raise ValueError(f"the model is on {there}; this machine computes on {here}")


def _bar(progress: bool):
    """Return a progress bar on stdout: there it is no warning, and needs no widget."""
    from tqdm import tqdm

    look = "{desc} {n_fmt}/{total_fmt} [{elapsed}]{postfix}"
    return tqdm(
        desc="plans", disable=not progress, file=sys.stdout, bar_format=look, total=0
    )


def _free() -> None:
    gc.collect()
    if machine.detect().device == "cuda":
        torch.cuda.empty_cache()


def _seconds(trial: Trial) -> float:
    """Return a plan's time per call, infinite if there is none: for sorting."""
    return trial.result.median_s if trial.result and trial.result.n else math.inf


# ------------------------------------------------------------------------ code to paste


PLAIN = """
    @torch.inference_mode()
    def call(*inputs, **named):
        inputs, named = tree_map(cast, (inputs, named))
        return run(*inputs, **named)
"""
COPYING = PLAIN.replace(
    "run(*inputs, **named)", "tree_map(copied, run(*inputs, **named))"
)
GRAPH = """
    graphs = {}

    @torch.inference_mode()
    def call(*inputs):
        key = tuple((x.shape, x.dtype) for x in inputs)
        if key not in graphs:
            buffers = [cast(x).clone() for x in inputs]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):  # libraries set themselves up, outside the capture
                    run(*buffers)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = run(*buffers)
            graphs[key] = graph, buffers, output
        graph, buffers, output = graphs[key]
        for buffer, x in zip(buffers, inputs):
            buffer.copy_(x)
        graph.replay()
        return tree_map(copied, output)
"""


def _code(plan: Plan) -> str:
    """Write the function ``optimized`` of a plan."""
    layout = ", memory_format=torch.channels_last" * plan.channels_last
    options = f", mode={plan.compile!r}" * (plan.compile not in ("", "default"))
    options += f", dynamic={plan.dynamic}" * (plan.dynamic is not None)
    copies = plan.graph or plan.compile in RECORDING
    fp32, tf32 = plan.dtype == torch.float32, plan.precision == "TF32"
    high = "high" if tf32 else "highest"
    cache = ", cache_enabled=False" * plan.graph  # see _settings
    ending = GRAPH if plan.graph else COPYING if copies else PLAIN
    lines = {
        "import copy\n\nimport torch": True,
        "from torch.fx.experimental.optimization import fuse": plan.folded,
        "from torch.utils._pytree import tree_map\n": True,
        f'torch.set_float32_matmul_precision("{high}")': fp32,
        f"torch.backends.cudnn.allow_tf32 = {tf32}": fp32,
        "torch.backends.cudnn.benchmark = True": plan.cudnn_benchmark,
        "torch.backends.mha.set_fastpath_enabled(False)": not plan.fast_path,
        "\n\ndef optimized(model):": True,
        textwrap.fill(f'    """{plan}."""', 88, subsequent_indent="    "): True,
        "    model = copy.deepcopy(model).eval().requires_grad_(False)": True,
        "    model = fuse(model)": plan.folded,
        "\n    def cast(x):": True,
        "        if not torch.is_tensor(x) or not x.is_floating_point():": True,
        "            return x": True,
        "        if x.dim() == 4:": plan.channels_last,
        f"            return x.to({plan.dtype}{layout})": plan.channels_last,
        f"        return x.to({plan.dtype})": True,
        "\n    model._apply(cast)  # `to` would make complex numbers real": True,
        f"    run = torch.compile(model{options})": plan.compile,
        "    run = model": not plan.compile,
        "    device = next(model.parameters()).device.type": plan.autocast,
        f"    autocast = torch.autocast(device, {plan.autocast}{cache})": plan.autocast,
        "    run = autocast(run)": plan.autocast,
        "\n    def copied(x):": copies,
        "        return x.clone() if torch.is_tensor(x) else x": copies,
        ending.rstrip(): True,
        "\n    return call": True,
    }
    text = "\n".join(line for line, needed in lines.items() if needed) + "\n"
    return re.sub("\n{4,}", "\n" * 3, text)
