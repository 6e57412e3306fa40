"""Look inside a model while it runs: what each layer makes of its numbers."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable

import torch
from torch import nn

from helpers import formats, switches
from helpers.comparing import tensors


@dataclasses.dataclass(frozen=True)
class Layer:
    """Hold what one call of one layer gave out.

    Attributes:
        name: as in ``model.named_modules()``; "(input 0)" for what the model is given.
        kind: its class, such as "Conv2d"; "" for an input.
        weights, output: formats of its own floating parameters, and of its output;
            "" if there is none.
        largest: the largest finite magnitude in the output; NaN if nothing is finite.
        nans, infs: how many there are in the output.
    """

    name: str
    kind: str
    weights: str
    output: str
    largest: float
    nans: int
    infs: int


@dataclasses.dataclass(frozen=True)
class Probe:
    """Hold a run of a model, layer by layer, in the order in which they finished."""

    layers: tuple[Layer, ...]

    @property
    def first_bad(self) -> Layer | None:
        """Return the first layer whose output has an Inf or NaN, None if none has."""
        return next((layer for layer in self.layers if layer.infs or layer.nans), None)

    def beyond(self, format: str | formats.Format) -> list[Layer]:
        """Return the layers whose largest magnitude a format cannot hold."""
        most = formats.get(format).max
        return [layer for layer in self.layers if layer.largest > most]

    def table(self):
        """Return a pandas DataFrame for reading: one row a layer."""
        import pandas

        rows = [
            {
                "layer": layer.name,
                "kind": layer.kind or "-",
                "weights": layer.weights or "-",
                "output": layer.output or "-",
                "largest": "-" if math.isnan(layer.largest) else f"{layer.largest:.4g}",
                "NaN": f"{layer.nans:,}",
                "Inf": f"{layer.infs:,}",
            }
            for layer in self.layers
        ]
        return pandas.DataFrame(rows).set_index("layer")

    def __repr__(self) -> str:
        return self.table().to_string()

    def _repr_html_(self) -> str:
        return self.table().to_html()


def probe(model: nn.Module, *inputs, **named) -> Probe:
    """Run a model once and note every layer's formats, largest magnitude, Inf and NaN.

    To see what will overflow before a model is cast, probe it in FP32 and ask
    ``beyond("FP16")``: once a number is Inf, its size is gone. The run is without
    gradients, in the model's own train or eval mode, and with the fused attention
    switched off, which would hide the layers inside.

    Args:
        inputs, named: what the model is called with.

    Raises:
        TypeError: ``model`` is no ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"cannot probe {model!r}: give an nn.Module")
    layers, hooks = [], []

    def note(name: str, module: nn.Module | None, output) -> None:
        own = () if module is None else module.parameters(recurse=False)
        kind = "" if module is None else type(module).__name__
        layers.append(_layer(name, kind, _formats(own), output))

    for name, module in model.named_modules():
        # A container that only passes on what its last layer gave would repeat it.
        if type(module) in (nn.Sequential, nn.Dropout, nn.Identity):
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


def kernels(call: Callable[[], object]) -> tuple[str, ...]:
    """Return the names of the GPU kernels that a call ran, in order; () without a GPU.

    Names are NVIDIA's and PyTorch's own, and change with their releases. ``call`` runs
    twice: the first run loads what the second shows. Copies and fills are left out.
    """
    call()
    if not torch.cuda.is_available():
        return ()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it does not keep between cycles
        with torch.profiler.profile(activities=activities) as p:
            call()
            torch.cuda.synchronize()
    events = sorted(p.events(), key=lambda event: event.time_range.start)
    names = [e.name for e in events if e.device_type.name == "CUDA"]
    return tuple(n for n in names if not n.startswith(("Memset", "Memcpy")))


def _noted(note, name: str, module: nn.Module, args, output) -> None:
    """Be the forward hook of a module: note its output, and leave it as it is."""
    note(name, module, output)


def _layer(name: str, kind: str, weights: str, output) -> Layer:
    """Sum up what a layer gave out; parts that are no floating tensors have no size."""
    try:
        found = [tensor.detach() for _, tensor in tensors(output)]
    except TypeError:
        found = []
    largest, nans, infs = math.nan, 0, 0
    for tensor in found:
        nans += int(tensor.isnan().sum())
        infs += int(tensor.isinf().sum())
        finite = tensor[tensor.isfinite()]
        if finite.numel():
            top = float(finite.abs().max())
            largest = top if math.isnan(largest) else max(largest, top)
    return Layer(name, kind, weights, _formats(found), largest, nans, infs)


def _formats(found) -> str:
    """Name the dtypes of tensors as the course does: "FP16", "int64"."""
    known = {f.dtype: f.name for f in formats.ALL.values() if f.name != "TF32"}
    names = [known.get(t.dtype, str(t.dtype).split(".")[-1]) for t in found]
    return ", ".join(dict.fromkeys(names))
