"""PyTorch's global switches, set inside a block and put back after it.

PyTorch has two families of calls for the precision of FP32 arithmetic, the newer one
since release 2.9, and reading one after writing the other raises a RuntimeError, also
inside ``torch.compile``. Everything here writes with the older family alone, the only
one that all releases from 2.6 on have and compile with:
``torch.set_float32_matmul_precision`` and ``torch.backends.cudnn.allow_tf32``.

Entering and leaving a block takes tens of microseconds: put it around many calls. As
a decorator it covers a function's calls; of a generator, only its creation.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32 (TF32) on
Ampere (and later) devices".
"""

import contextlib
import functools

import torch

from helpers._arguments import quoted

PRECISIONS = ("highest", "high", "medium")
# Where the newer family has an `fp32_precision`: the general ones, then the particular.
_NEWER = ("", "cudnn", "mkldnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn")
_NEWER += ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
_TUNING = ("benchmark", "benchmark_limit")


@contextlib.contextmanager
def restored():
    """Put the switches of this module back after the block, whatever it did to them.

    Also after an exception, and in whichever family they were set; blocks can nest. A
    switch that did not change is not written: a first write would end the state in
    which ``torch.backends.fp32_precision`` decides (for cuDNN a block that changed it
    cannot bring that state back). Where the program had made the two families
    contradict each other, they may agree afterwards; what is in effect stays.

    An interrupt while the switches are put back puts them back and goes on. In the
    microseconds in which Python itself enters or leaves the block, one can be missed.
    """
    before = _read()
    try:
        yield
    finally:
        try:
            _write(before)
        except KeyboardInterrupt:  # it came in between: once more, then let it go on
            _write(before)
            raise


@contextlib.contextmanager
def matmul_precision(precision: str):
    """Set the precision of FP32 matrix products inside the block.

    Args:
        precision: "highest" is FP32; "high" is TF32 where the GPU has it; "medium" is
            the same on a GPU, and may be BF16 on a CPU.

    Raises:
        ValueError: it is none of the three.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"precision={quoted(precision)}: give one of {PRECISIONS}")
    with restored():
        _set_matmul(precision)
        yield


@contextlib.contextmanager
def tf32(matmul: bool | None = None, cudnn: bool | None = None):
    """Allow or forbid TF32 inside the block; None leaves a switch as it is.

    Args:
        matmul: for matrix products: linear layers, attention, ``@``.
        cudnn: for convolutions and RNNs, which share one switch. (The newer family has
            one for each; before release 2.15, ``torch.compile`` fails after its use.)

    Raises:
        TypeError: an argument is none of True, False and None.
    """
    for name, value in (("matmul", matmul), ("cudnn", cudnn)):
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: give True, False or None")
    with restored():
        if matmul is not None:
            _set_matmul("high" if matmul else "highest")
        if cudnn is not None:
            _set_cudnn(cudnn)
        yield


@contextlib.contextmanager
def fast_path(enabled: bool):
    """Allow or forbid the fused attention and encoder layers of eval mode.

    In eval mode and without gradients, ``nn.MultiheadAttention`` and
    ``nn.TransformerEncoderLayer`` run as one opaque operation. Forbid it to see, count
    or convert the operations inside.

    Raises:
        TypeError: ``enabled`` is neither True nor False.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled={enabled!r}: give True or False")
    with restored():
        torch.backends.mha.set_fastpath_enabled(enabled)
        yield


@contextlib.contextmanager
def cudnn_benchmark(enabled: bool, limit: int | None = None):
    """Let cuDNN try its convolution algorithms on new shapes, or forbid it, inside.

    A shape that the process has convolved before keeps the algorithm it got then, in
    either setting; a block cannot take that back.

    Args:
        limit: how many algorithms to try at most, 0 for all; None leaves it as it is
            (PyTorch's default is 10).

    Raises:
        TypeError: ``enabled`` is neither True nor False, or ``limit`` no integer.
        ValueError: ``limit`` is negative.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled={enabled!r}: give True or False")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"limit={limit!r}: give an integer, or None")
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit!r}: give 0 for all algorithms, or more")
    with restored():
        torch.backends.cudnn.benchmark = enabled
        if limit is not None:
            torch.backends.cudnn.benchmark_limit = limit
        yield


@contextlib.contextmanager
def around_call(**wanted):
    """Set switches around one call: as the others do, in a tenth of the time.

    Only these are read, and written only where they differ. Where the program uses the
    newer family, it takes the careful way, and as long.

    Args:
        wanted: "matmul" (one of ``PRECISIONS``), "cudnn" (TF32 in convolutions and
            RNNs), "fast_path" and "benchmark" (True or False).

    Raises:
        KeyError: there is no such switch.
        TypeError, ValueError: a value is none of these.
    """
    for name, value in wanted.items():
        _check_switch(name, value)
    before = {name: _try(_QUICK[name][0]) for name in wanted}
    general = (torch.backends, torch.backends.cudnn)
    newer = any(getattr(owner, "fp32_precision", "none") != "none" for owner in general)
    if newer or None in before.values():
        with restored():
            for name, value in wanted.items():
                _set_cudnn(value) if name == "cudnn" else _QUICK[name][1](value)
            yield
        return
    changed = [name for name, value in wanted.items() if before[name] != value]
    owners = (
        map(_owner, ("cuda.matmul", "mkldnn.matmul")) if "matmul" in changed else ()
    )
    shown = [(o, o.fp32_precision) for o in owners if hasattr(o, "fp32_precision")]

    def back():
        for name in changed:
            _QUICK[name][1](before[name])
        for owner, value in shown:  # the newer family shows what was written to it
            owner.fp32_precision = value

    try:
        for name in changed:
            _QUICK[name][1](wanted[name])
        yield
    finally:
        try:
            back()
        except KeyboardInterrupt:
            back()
            raise


def _check_switch(name: str, value) -> None:
    if name not in _QUICK:
        raise KeyError(f"no switch {name!r}: there are {', '.join(_QUICK)}")
    if name == "matmul":
        if not isinstance(value, str) or value not in PRECISIONS:
            raise ValueError(f"matmul={quoted(value)}: give one of {PRECISIONS}")
    elif not isinstance(value, bool):
        raise TypeError(f"{name}={quoted(value)}: give True or False")


def state() -> dict[str, object]:
    """Return what is set now, by the name of the switch.

    A switch of the older family that PyTorch refuses to read, since the newer one was
    written, is given as "mixed".
    """
    read = _read()
    names = {
        "float32_matmul_precision": "matmul",
        "cudnn.allow_tf32": "allow cudnn",
        "mha fast path": "fast path",
        "cudnn.benchmark": "benchmark",
        "cudnn.benchmark_limit": "benchmark_limit",
    }
    return {name: "mixed" if read[k] is None else read[k] for name, k in names.items()}


def _read() -> dict[str, object]:
    """Read all switches; None where a family refuses, or is not there (torch < 2.9)."""
    found = {name: getattr(_owner(name), "fp32_precision", None) for name in _NEWER}
    found["matmul"] = _try(torch.get_float32_matmul_precision)
    found["allow matmul"] = _try(lambda: torch.backends.cuda.matmul.allow_tf32)
    found["allow cudnn"] = _allows_cudnn()
    found["fast path"] = torch.backends.mha.get_fastpath_enabled()
    for name in _TUNING:
        found[name] = getattr(torch.backends.cudnn, name)
    return found


def _write(before: dict[str, object]) -> None:
    """Put switches back: first the older family, then what the newer one shows."""
    now = _read()
    if now == before:
        return
    if before["matmul"] not in (None, now["matmul"]):
        torch.set_float32_matmul_precision(before["matmul"])
    elif before["allow matmul"] not in (None, now["allow matmul"]):
        torch.backends.cuda.matmul.allow_tf32 = before["allow matmul"]
    if before["allow cudnn"] not in (None, now["allow cudnn"]):
        torch.backends.cudnn.allow_tf32 = before["allow cudnn"]
    if now["fast path"] != before["fast path"]:
        torch.backends.mha.set_fastpath_enabled(before["fast path"])
    for name in _TUNING:
        if now[name] != before[name]:
            setattr(torch.backends.cudnn, name, before[name])
    for name in _NEWER:  # one by one: a general one changes what the others show
        owner, value = _owner(name), before[name]
        if value is not None and owner.fp32_precision != value:
            owner.fp32_precision = value


def _owner(name: str):
    """Return the object in ``torch.backends`` that has ``fp32_precision``, or None."""
    owner = torch.backends
    for part in filter(None, name.split(".")):
        owner = getattr(owner, part, None)
    return owner


def _set_matmul(precision: str) -> None:
    if _try(torch.get_float32_matmul_precision) != precision:
        torch.set_float32_matmul_precision(precision)


def _set_cudnn(allowed: bool) -> None:
    """Write the older family's switch, and what a general newer setting would undo."""
    if _allows_cudnn() != allowed:
        torch.backends.cudnn.allow_tf32 = allowed
    for part in map(_owner, ("cudnn.conv", "cudnn.rnn")):
        if not allowed and getattr(part, "fp32_precision", None) == "tf32":
            part.fp32_precision = "ieee"


def _allows_cudnn() -> bool | None:
    return _try(lambda: torch.backends.cudnn.allow_tf32)


def _try(read):
    try:
        return read()
    except RuntimeError:  # "mix of the legacy and new APIs"
        return None


# How to read and to write the switches of `around_call`.
_QUICK = {
    "matmul": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cudnn": (
        lambda: torch.backends.cudnn.allow_tf32,
        functools.partial(setattr, torch.backends.cudnn, "allow_tf32"),
    ),
    "fast_path": (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    "benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        functools.partial(setattr, torch.backends.cudnn, "benchmark"),
    ),
}
