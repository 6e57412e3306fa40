"""Look inside while a model runs: its numbers layer by layer, its kernels one by one.

Measure first, and ask ``kernels``, ``operators`` and ``timeline`` last: on a GPU the
profiler leaves its hooks in the process, and from then on each launch takes longer.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from helpers import formats, machine, switches
from helpers._arguments import Size, checked, quoted
from helpers.comparing import quiet_profiler, synchronize, tensors

TIMELINE_CALLS = 20  # after fewer, the profiler's own start-up shows in the last one


@checked
@dataclasses.dataclass(frozen=True)
class Layer:
    """Hold what one call of one layer gave out, and what the layer itself stores.

    Attributes:
        name: as in ``model.named_modules()``; "(input 0)" for what the model is given.
        kind: its class, such as "Conv2d"; "" for an input.
        weights, output: formats of its own floating parameters, and of its output;
            "" if there is none.
        largest: the largest finite magnitude in the output; NaN if there is no finite
            floating number in it.
        nans, infs: how many there are in the output.
        stored: the largest finite magnitude in its own parameters and buffers; NaN if
            it has none.
        stored_bad: how many Inf and NaN there are in those.
    """

    name: str
    kind: str
    weights: str
    output: str
    largest: float
    nans: Size
    infs: Size
    stored: float = math.nan
    stored_bad: Size = 0


@checked
@dataclasses.dataclass(frozen=True)
class Probe:
    """Hold a run of a model, layer by layer, in the order in which they finished."""

    layers: tuple[Layer, ...]

    @property
    def first_bad(self) -> Layer | None:
        """Return the first layer that gives out an Inf or NaN, None if none does."""
        return next((layer for layer in self.layers if layer.infs or layer.nans), None)

    def beyond(self, format: str | formats.Format) -> list[Layer]:
        """Return the layers with an output, or a stored number, too large for a format.

        Stored numbers matter as much: a batch norm's variance is the square of what
        its inputs are, and becomes Inf in the cast itself.
        """
        most = formats.get(format).max
        return [x for x in self.layers if x.largest > most or x.stored > most]

    def table(self):
        """Return a pandas DataFrame for reading: one row a layer."""
        import pandas

        rows = [
            {
                "kind": layer.kind or "-",
                "weights": layer.weights or "-",
                "output": layer.output or "-",
                "largest": _short(layer.largest),
                "NaN": f"{layer.nans:,}",
                "Inf": f"{layer.infs:,}",
                "largest stored": _short(layer.stored),
                "stored NaN, Inf": f"{layer.stored_bad:,}",
            }
            for layer in self.layers
        ]
        names = pandas.Index([layer.name for layer in self.layers], name="layer")
        return pandas.DataFrame(rows, names)

    def __repr__(self) -> str:
        return self.table().to_string()

    def _repr_html_(self) -> str:
        return self.table().to_html()


def probe(model: nn.Module, *inputs, **named) -> Probe:
    """Run a model once and note every layer's formats, largest magnitude, Inf and NaN.

    To see what will overflow before a model is cast, probe it in FP32 and ask
    ``beyond("FP16")``: once a number is Inf, its size is gone. The run is without
    gradients and with the fused attention switched off, which would hide the layers
    inside. It is in the model's own mode: in train mode batch norm updates itself.

    Args:
        inputs, named: what the model is called with.

    Raises:
        TypeError: ``model`` is no ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"cannot probe {quoted(model)}: give an nn.Module")
    layers, hooks = [], []

    def note(name: str, module: nn.Module | None, output) -> None:
        layers.append(_layer(name, module, output))

    for name, module in model.named_modules():
        # A container that only passes on what its last layer gave would repeat it.
        passes_on = isinstance(module, nn.Dropout) and not module.training
        if passes_on or type(module) in (nn.Sequential, nn.Identity):
            continue
        hook = functools.partial(_noted, note, name or "(output)")
        hooks.append(module.register_forward_hook(hook))
    try:
        for i, value in enumerate((*inputs, *named.values())):
            note(f"(input {i})", None, value)
        with torch.no_grad(), switches.fast_path(False):
            model(*inputs, **named)
    finally:
        for hook in hooks:
            hook.remove()
    return Probe(tuple(layers))


@checked
def kernels(call: Callable[[], object]) -> tuple[str, ...]:
    """Return the names of the GPU kernels that a call ran, in order; () without a GPU.

    Names are NVIDIA's and PyTorch's own, and change with their releases. ``call`` runs
    twice: the first run loads what the second shows. Copies and fills are left out.
    """
    call()
    names = [event.name for event in _events(call, "CUDA")]
    return tuple(n for n in names if not n.startswith(("Memset", "Memcpy")))


@checked
def operators(call: Callable[[], object]) -> tuple[str, ...]:
    """Return the names of PyTorch's operators that a call ran, in order: "aten::mm".

    An operator stands before those that it is made of. ``call`` runs once.
    """
    names = [event.name for event in _events(call, "CPU")]
    return tuple(name for name in names if re.fullmatch(r"\w+::\w+", name))


@checked
@dataclasses.dataclass(frozen=True)
class Kernel:
    """Hold when a GPU kernel ran: seconds from the start of the call's first one."""

    name: str
    start_s: float
    seconds: float


@checked
def timeline(call: Callable[[], object]) -> tuple[Kernel, ...]:
    """Return when each GPU kernel, copy and fill of one call ran; () without a GPU.

    ``call`` runs once, then twenty times, and the last is returned: the profiler makes
    the first launches slow. It slows the others, too, and those after it: see above.

    Raises:
        ValueError: the last two did not launch the same kernels, by their names.
    """

    def repeated():
        for _ in range(TIMELINE_CALLS):
            call()
            synchronize()

    call()
    events = _events(repeated, "CUDA")
    if not events:
        return ()
    each = max(len(events) // TIMELINE_CALLS, 1)
    first = len(events) - each
    names = [event.name for event in events]
    if names[first:] != names[first - each : first]:
        many = f"{len(events)} kernels in {TIMELINE_CALLS} calls"
        raise ValueError(f"{call!r} launched {many}: they are not alike")
    start = events[first].time_range.start
    return tuple(
        Kernel(
            e.name, (e.time_range.start - start) / 1e6, e.time_range.elapsed_us() / 1e6
        )
        for e in events[first:]
    )


def _events(call: Callable[[], object], device: str) -> list:
    """Profile a call on the "CPU" or on the GPU, "CUDA"; return what ran, in order."""
    if device == "CUDA" and machine.detect().device != "cuda":
        return []
    synchronize()
    activities = [getattr(torch.profiler.ProfilerActivity, device)]
    with quiet_profiler(), torch.profiler.profile(activities=activities) as profile:
        call()
        synchronize()
    found = [e for e in profile.events() if e.device_type.name == device]
    return sorted(found, key=lambda e: (e.time_range.start, -e.time_range.end))


def _noted(note, name: str, module: nn.Module, args, output) -> None:
    """Be the forward hook of a module: note its output, and leave it as it is."""
    note(name, module, output)


def _layer(name: str, module: nn.Module | None, output) -> Layer:
    """Sum up a layer; in an output, what is no tensor is passed over."""
    try:
        found = [tensor for _, tensor in tensors(output)]
    except TypeError:
        found = [leaf for leaf in tree_leaves(output) if torch.is_tensor(leaf)]
    kind, weights, own = "", "", []
    if module is not None:
        kind = type(module).__name__
        weights = _formats(module.parameters(recurse=False))
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    stored, *bad = _extent(own)
    return Layer(
        name, kind, weights, _formats(found), *_extent(found), stored, sum(bad)
    )


def _extent(found) -> tuple[float, int, int]:
    """Return the largest finite magnitude of tensors, and how many NaN and Inf."""
    largest, nans, infs = math.nan, 0, 0
    for tensor in found:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        tensor = tensor.detach().to_dense()
        if tensor.itemsize == 1:
            tensor = tensor.float()  # FP8 can do little but be converted
        nans += int(tensor.isnan().sum())
        infs += int(tensor.isinf().sum())
        finite = tensor[tensor.isfinite()]
        if finite.numel():
            top = float(finite.abs().max())
            largest = top if math.isnan(largest) else max(largest, top)
    return largest, nans, infs


def _short(magnitude: float) -> str:
    return "-" if math.isnan(magnitude) else f"{magnitude:.4g}"


def _formats(found) -> str:
    """Name the dtypes of tensors as the course does: "FP16", "int64"."""
    known = {f.dtype: f.name for f in formats.ALL.values() if f.name != "TF32"}
    names = [known.get(t.dtype, str(t.dtype).split(".")[-1]) for t in found]
    return ", ".join(dict.fromkeys(names))
