"""Why a call takes as long as it does: overhead, memory traffic or arithmetic.

The roofline model (Williams, Waterman and Patterson, CACM 2009) gives a call two least
times: the bytes it moves ÷ the memory's bandwidth, and its FLOPs ÷ the arithmetic peak.
Eager PyTorch has a third: the operations it launches × what launching one costs. The
largest of the three binds. Peaks are measured here, not read off a data sheet.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry, sdpa_flop_count

from helpers import formats, machine, switches
from helpers._arguments import Least0, Positive, Size, checked
from helpers.comparing import show_seconds, synchronize, time_block


@checked
@dataclasses.dataclass(frozen=True)
class Work:
    """Count what one call asks of the machine.

    Attributes:
        flops: of matrix products, convolutions and attention (one multiply-add is two),
            as `torch.utils.flop_counter` counts them. Layers that run as one opaque
            kernel (the fast path of `nn.TransformerEncoderLayer`, `nn.LSTM`) count 0.
        elementwise: one for each number that any other operation writes.
        bytes_moved: each operation reads its inputs and writes its outputs, once. A
            lookup counts its whole table.
        bytes_least: the call's own inputs, weights and outputs, once: what would be
            left if all operations were fused into one.
        ops: operations launched; views and allocations cost no launch.
    """

    flops: Size
    elementwise: Size
    bytes_moved: Size
    bytes_least: Size
    ops: Size

    @property
    def all_flops(self) -> int:
        return self.flops + self.elementwise

    @property
    def intensity(self) -> float:
        """Return FLOPs per byte moved, the roofline's horizontal axis."""
        return self.all_flops / max(self.bytes_moved, 1)


@checked
@dataclasses.dataclass(frozen=True)
class Peaks:
    """Hold the measured limits of a machine.

    Attributes:
        op_s: seconds to launch one tiny operation, eager.
        bytes_per_s: bytes read plus bytes written, on large arrays.
        flops_per_s: large square matmul, by name of the number format.
    """

    op_s: Positive
    bytes_per_s: Positive
    flops_per_s: dict[str, Positive]

    def __str__(self) -> str:
        lines = [f"launching an operation  {show_seconds(self.op_s)}"]
        lines += [f"memory bandwidth        {show_rate(self.bytes_per_s, 'B/s')}"]
        for name, rate in self.flops_per_s.items():
            lines += [f"{name + ' matmul':<24}{show_rate(rate)}"]
        return "\n".join(lines)


@checked
@dataclasses.dataclass(frozen=True)
class Bound:
    """Hold the three least times of a call, in seconds, and which one binds."""

    overhead_s: Least0
    memory_s: Least0
    compute_s: Least0

    @property
    def least_s(self) -> float:
        return max(self.overhead_s, self.memory_s, self.compute_s)

    @property
    def binding(self) -> str:
        """Return "overhead", "memory" or "compute"."""
        times = {
            "overhead": self.overhead_s,
            "memory": self.memory_s,
            "compute": self.compute_s,
        }
        return max(times, key=times.get)


@checked
def show_rate(per_s: float, unit: str = "FLOP/s") -> str:
    """Write a rate with a prefix that fits: "51.2 TFLOP/s"."""
    prefix, size = ("T", 1e12) if per_s >= 1e12 else ("G", 1e9)
    return f"{per_s / size:.3g} {prefix}{unit}"


@checked
def bound(work: Work, peaks: Peaks, format: str | formats.Format = "FP32") -> Bound:
    """Return the least times that a machine's peaks allow for a call's work.

    Args:
        format: the number format that the matrix products run in; "FP32" by default.

    Raises:
        ValueError: the peak of that format was not measured here.
    """
    name = formats.get(format).name
    if work.flops and name not in peaks.flops_per_s:
        known = ", ".join(peaks.flops_per_s)
        raise ValueError(f"no {name} peak was measured here: there are {known}")
    compute_s = work.flops / peaks.flops_per_s[name] if work.flops else 0.0
    return Bound(work.ops * peaks.op_s, work.bytes_moved / peaks.bytes_per_s, compute_s)


# -------------------------------------------------------------------- counting the work


aten = torch.ops.aten


def _attention_flops(query, key, value, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(query, key, value)


# PyTorch's flop counter knows the GPU's attention kernels, not the CPU's.
CPU_ATTENTION = {aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


class _Traffic(TorchDispatchMode):
    """Add up operations and bytes, operation by operation."""

    def __init__(self):
        super().__init__()
        self.ops = self.bytes_moved = self.elementwise = 0
        self.read, self.made = {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        # What is only overwritten is not read.
        overwrites = func._overloadpacket in (aten.copy_, aten.fill_, aten.zero_)
        read = {k: v for k, v in (kwargs or {}).items() if k != "out"}
        inputs = _dense((args[1:] if overwrites else args, read))
        outputs = _dense(output)
        known = {_place(tensor) for tensor in inputs}
        is_view = not func._schema.is_mutable and all(
            _place(tensor) in known for tensor in outputs
        )
        if not outputs or is_view or "empty" in func.__name__:
            return output
        self.ops += 1
        self.bytes_moved += sum(map(_size, inputs)) + sum(map(_size, outputs))
        if func._overloadpacket not in (*flop_registry, *CPU_ATTENTION):
            self.elementwise += sum(tensor.numel() for tensor in outputs)
        for tensor in inputs:
            if _place(tensor) not in self.made:
                part = (_place(tensor), tensor.storage_offset())
                self.read[part] = max(self.read.get(part, 0), _size(tensor))
        outside = {place for place, _ in self.read}
        self.made |= {_place(tensor) for tensor in outputs} - outside
        return output


@checked
def count(call: Callable, *args) -> Work:
    """Run a call once, eagerly and without gradients, and count its work.

    Args:
        call: a module or function; called as ``call(*args)``. Of a compiled one, the
            operations are counted that it was compiled from.
    """
    counter = FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION)
    with torch.no_grad(), _Traffic() as traffic, counter as flops:
        output = call(*args)
    written = {_place(tensor): _size(tensor) for tensor in _dense(output)}
    least = sum(traffic.read.values()) + sum(written.values())
    return Work(
        flops.get_total_flops(),
        traffic.elementwise,
        traffic.bytes_moved,
        least,
        traffic.ops,
    )


def _dense(tree) -> list[torch.Tensor]:
    """List the tensors in a tree that have elements, each part of memory once."""
    found = [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.numel()]
    parts = {(_place(t), t.storage_offset(), t.shape): t for t in found}
    return list(parts.values())


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size(tensor: torch.Tensor) -> int:
    # An expanded tensor has more elements than bytes behind them.
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


# ------------------------------------------------------------------ measuring the peaks


@checked
def measure_peaks(
    names: tuple[str | formats.Format, ...] | None = None,
) -> Peaks:
    """Measure launch cost, memory bandwidth and matmul rates; takes a few seconds.

    Args:
        names: number formats of the matmuls; by default those of FP32, TF32, BF16 and
            FP16 that this machine has native arithmetic for, and FP32 in any case.

    Raises:
        ValueError: a name is unknown, or this machine cannot multiply in that format.
    """
    here = machine.detect()
    if names is None:
        candidates = ("FP32", "TF32", "BF16", "FP16")
        names = tuple(n for n in candidates if n == "FP32" or machine.supports(n))
    names = tuple(formats.get(name).name for name in names)
    for name in names:
        native = name in machine.FORMATS and machine.supports(name)
        if name != "FP32" and not (native and formats.get(name).bits > 8):
            raise ValueError(f"cannot measure {name} matmuls here: not a native format")
    with torch.inference_mode():
        one = torch.zeros(1, device=here.device)
        op_s = _fastest(lambda: one.add_(1), calls=2000)
        bytes_per_s = _memory_rate(here.device)
        flops_per_s = {name: _matmul_rate(name, here.device) for name in names}
    return Peaks(op_s, bytes_per_s, flops_per_s)


def _memory_rate(device: str) -> float:
    """Return bytes per second, read plus written, on arrays too large for caches.

    The better of a copy and an addition in place: a CPU may fetch a line before it
    overwrites it, so that a copy moves more bytes than it counts.
    """
    wanted = 2**30 if device == "cuda" else 2**28
    source = torch.zeros(machine.fit(wanted, share=0.2) // 8, device=device)
    target = torch.empty_like(source)
    copy = _fastest(lambda: target.copy_(source), calls=5)
    add = _fastest(lambda: target.add_(1), calls=5)
    return 2 * source.nbytes / min(copy, add)


def _matmul_rate(name: str, device: str) -> float:
    """Return FLOP/s of the largest square matmul that takes a moment, at most 8192³."""
    dtype = formats.get(name).dtype
    with switches.matmul_precision("high" if name == "TF32" else "highest"):
        n, took = 512, 0.0
        while took < 0.005 and n < 8192:
            n *= 2
            # Random numbers: on zeros a GPU draws less power and clocks higher.
            a = torch.randn(n, n, device=device).to(dtype)
            b = torch.randn(n, n, device=device).to(dtype)
            took = _fastest(lambda a=a, b=b: a @ b, calls=1)
        took = _fastest(lambda: a @ b, calls=3)
    return 2 * n**3 / took


def _fastest(call: Callable, calls: int) -> float:
    """Return seconds per call of the fastest of five blocks: a peak, not a median."""
    call()
    synchronize()
    return min(time_block(call, calls) for _ in range(5))
