"""Floating-point formats as data: decode, encode, neighbours, spacing, rounding.

One definition (IEEE 754-2019 §3.4, generalised by the OCP 8-bit and MX specifications)
covers every format here. A finite code stands for

    (-1)^sign × 2^(exponent field - bias) × (1 + significand field / 2^significand_bits)

and, where the exponent field is 0, for (-1)^sign × 2^(1 - bias) × (0 + …): zero and the
subnormals. What the highest codes mean is the one thing in which the formats differ.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction

import numpy as np
import torch

from helpers._arguments import Size, check, checked, quoted


@checked
@dataclasses.dataclass(frozen=True)
class Format:
    """Describe one floating-point format.

    Args:
        name: what the field calls it, such as "BF16".
        exponent_bits, significand_bits: widths of the stored fields; the leading 1 of
            the significand (also called mantissa) is implied, not stored.
        top: what the highest codes mean. "ieee": an all-ones exponent is Inf or NaN;
            "nan": only the all-ones code is, and it is NaN; "finite": all are numbers.
        signed: whether there is a sign bit (E8M0, a scale factor, has none).
        subnormals: whether exponent field 0 means zero and subnormals.
        dtype_name: the torch dtype that stores it ("" if torch has none).
        storage_bits: bits taken in memory; TF32 lives in 32-bit FP32 words.
    """

    name: str
    exponent_bits: int
    significand_bits: int
    top: str = "ieee"
    signed: bool = True
    subnormals: bool = True
    dtype_name: str = ""
    storage_bits: Size = 0

    def __post_init__(self):
        known = getattr(torch, self.dtype_name, None) if self.dtype_name else None
        if not isinstance(known, torch.dtype | None):
            raise ValueError(f"dtype_name={self.dtype_name!r}: give a dtype's")
        least = 1 if self.top == "ieee" else 0  # one bit to tell NaN from Inf
        for value, accepted, what in (
            (self.exponent_bits, range(2, 12), "exponent_bits from 2 to 11"),
            (
                self.significand_bits,
                range(least, 53),
                f"significand_bits {least} to 52",
            ),
            (self.top, ("ieee", "nan", "finite"), "top 'ieee', 'nan' or 'finite'"),
        ):
            if value not in accepted:
                raise ValueError(f"{self.name!r} has {value!r}: give {what}")
        scale = not self.signed and not self.significand_bits  # as E8M0 is
        if (self.signed, self.subnormals) != (not scale, not scale):
            what = f"{self.signed=}, {self.subnormals=}".replace("self.", "")
            raise ValueError(
                f"{self.name!r} has {what}: only a scale has neither sign nor zero"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Count the bits that carry information: 19 for TF32."""
        return self.signed + self.exponent_bits + self.significand_bits

    @property
    def magnitude_bits(self) -> int:
        """Count the bits below the sign bit."""
        return self.exponent_bits + self.significand_bits

    @property
    def bias(self) -> int:
        """Return what is subtracted from the exponent field: 2^(bits - 1) - 1."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def min_exponent(self) -> int:
        """Return the power of two of the smallest normal number."""
        return 1 - self.bias if self.subnormals else -self.bias

    @property
    def max_code(self) -> int:
        """Return the code of the largest finite number."""
        if self.top == "ieee":
            return ((2**self.exponent_bits - 1) << self.significand_bits) - 1
        return 2**self.magnitude_bits - (2 if self.top == "nan" else 1)

    @property
    def inf_code(self) -> int | None:
        """Return the code of +Inf, or None where the format has no Inf."""
        return self.max_code + 1 if self.top == "ieee" else None

    @property
    def nan_code(self) -> int | None:
        """Return the code of the quiet NaN, or None where the format has no NaN."""
        if self.top == "ieee":
            return (self.max_code + 1) | (1 << (self.significand_bits - 1))
        return 2**self.magnitude_bits - 1 if self.top == "nan" else None

    @property
    def max(self) -> float:
        """Return the largest finite number."""
        return decode(self.max_code, self).value

    @property
    def max_exponent(self) -> int:
        """Return the power of two of the largest finite number."""
        return math.frexp(self.max)[1] - 1

    @property
    def smallest_normal(self) -> float:
        """Return the smallest positive number that has the full precision."""
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Return the smallest positive number of all."""
        bits = self.significand_bits if self.subnormals else 0
        return 2.0 ** (self.min_exponent - bits)

    @property
    def epsilon(self) -> float:
        """Return the distance from 1 to the next larger number."""
        return 2.0**-self.significand_bits

    @property
    def decimal_digits(self) -> float:
        """Return the precision in decimal digits: log10(2) × (significand bits + 1)."""
        return (self.significand_bits + 1) * math.log10(2)

    @property
    def storage_bytes(self) -> float:
        """Return the bytes that one number takes in memory (TF32: 4)."""
        return (self.storage_bits or self.bits) / 8

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the torch dtype that stores it, None if this torch has none."""
        return getattr(torch, self.dtype_name, None) if self.dtype_name else None


FP64 = Format("FP64", 11, 52, dtype_name="float64")
FP32 = Format("FP32", 8, 23, dtype_name="float32")
TF32 = Format("TF32", 8, 10, dtype_name="float32", storage_bits=32)
BF16 = Format("BF16", 8, 7, dtype_name="bfloat16")
FP16 = Format("FP16", 5, 10, dtype_name="float16")
E4M3 = Format("FP8 E4M3", 4, 3, top="nan", dtype_name="float8_e4m3fn")
E5M2 = Format("FP8 E5M2", 5, 2, dtype_name="float8_e5m2")
E2M1 = Format("FP4 E2M1", 2, 1, top="finite")
E8M0 = Format(
    "E8M0", 8, 0, top="nan", signed=False, subnormals=False, dtype_name="float8_e8m0fnu"
)

ALL = {f.name: f for f in (FP64, FP32, TF32, BF16, FP16, E4M3, E5M2, E2M1, E8M0)}


def get(name: str | Format) -> Format:
    """Look a format up by name, ignoring case: "tf32", "FP8 E4M3", also "E4M3".

    Raises:
        ValueError: no format has that name; the message lists those that exist.
    """
    if isinstance(name, Format):
        return name
    wanted = name.strip().upper() if isinstance(name, str) else ""
    for full_name, format in ALL.items():
        if wanted and wanted in (full_name, full_name.split()[-1]):
            return format
    raise ValueError(f"unknown format {name!r}: give one of {', '.join(ALL)}")


# ----------------------------------------------------------------- one number at a time


@checked
@dataclasses.dataclass(frozen=True)
class Number:
    """Hold one code taken apart: its fields, its kind and its exact value.

    ``value`` is exact: every number of every format up to FP64 is a Python float.
    """

    format: Format
    code: int
    sign: int
    exponent_field: int
    significand_field: int
    kind: str  # "normal", "subnormal", "zero", "inf" or "nan"
    value: float

    @property
    def bit_string(self) -> str:
        """Return the bits, most significant first."""
        return format(self.code, f"0{self.format.bits}b")

    @property
    def fields(self) -> tuple[str, str, str]:
        """Return the bits of sign, exponent and significand; "" for a field of none."""
        bits, first = self.bit_string, int(self.format.signed)
        last = first + self.format.exponent_bits
        return bits[:first], bits[first:last], bits[last:]

    @property
    def exact(self) -> str:
        """Write the value in decimal, every digit of it: "1.234375".

        "" where that would be long: beyond 1e18 and below 1e-9, zero excepted.
        """
        if self.value == 0:
            return f"{self.value:.0f}"
        if not math.isfinite(self.value):
            return str(self.value)
        return (
            f"{Decimal(float(self.value)):f}" if 1e-9 < abs(self.value) < 1e18 else ""
        )

    @property
    def formula(self) -> str:
        """Write how the fields make the value: "+2^(127 - 127) × (1 + 240/1024)"."""
        if self.kind == "nan":
            return "not a number"
        sign = "-" if self.sign else "+"
        if self.kind == "inf":
            return f"{sign}infinity"
        lead = 1 if self.kind == "normal" else 0
        field = self.exponent_field if lead or not self.format.subnormals else 1
        power = f"{sign}2^({field} - {self.format.bias})"
        if not self.format.significand_bits:
            return power
        fraction = f"{self.significand_field}/{2**self.format.significand_bits}"
        return f"{power} × ({lead} + {fraction})"


def decode(code: int, format: str | Format) -> Number:
    """Take a code apart, exactly.

    Args:
        code: the bits as an integer, 0 ≤ code < 2^bits.
        format: a ``Format`` or its name.

    Raises:
        TypeError: the code is not an integer.
        ValueError: the code is outside the format, or the format is unknown.
    """
    f = get(format)
    if isinstance(code, bool) or not isinstance(code, int | np.integer):
        raise TypeError(f"code {code!r} is not an integer: give 0 to {2**f.bits - 1}")
    code = int(code)
    if not 0 <= code < 2**f.bits:
        raise ValueError(f"code {code} is not in {f}: give 0 to {2**f.bits - 1}")
    sign, magnitude = divmod(code, 2**f.magnitude_bits)
    exponent_field, significand_field = divmod(magnitude, 2**f.significand_bits)
    if magnitude > f.max_code:
        kind = "inf" if magnitude == f.inf_code else "nan"
        value = math.inf if kind == "inf" else math.nan
    else:
        normal = exponent_field > 0 or not f.subnormals
        kind = "normal" if normal else ("subnormal" if significand_field else "zero")
        significand = significand_field + normal * 2**f.significand_bits
        exponent = max(exponent_field - f.bias, f.min_exponent)
        value = math.ldexp(significand, exponent - f.significand_bits)
    value = math.copysign(value, -1 if sign else 1)
    return Number(f, code, sign, exponent_field, significand_field, kind, value)


def exact_value(value) -> Fraction | float:
    """Read a number without rounding it: a Fraction, or a float where it must be one.

    Args:
        value: int, float, Fraction, Decimal, a decimal string such as "1.5e-3" or
            "nan", or a NumPy or torch scalar. Strings are not rounded to FP64 first.

    Returns:
        A Fraction; a float for NaN, ±Inf and -0.0, which no Fraction can hold. Decimal
        exponents beyond ±5000 return ±Inf or ±0.0, which rounds the same way here.
    """
    if hasattr(value, "item") and not isinstance(value, str):
        one = value.numel() == 1 if torch.is_tensor(value) else np.size(value) == 1
        value = value.item() if one else value
    if isinstance(value, bool) or not isinstance(
        value, int | float | Fraction | Decimal | str
    ):
        raise TypeError(
            f"{quoted(value)} is not a real number: give an int, a float, a Fraction, "
            "a Decimal or a decimal string"
        )
    if isinstance(value, str):
        try:
            value = Decimal(value.strip().replace("\N{MINUS SIGN}", "-"))
        except InvalidOperation:
            raise ValueError(
                f"{value!r} is not a decimal number: give one such as '1.5e-3', "
                "'-inf' or 'nan'"
            ) from None
    if isinstance(value, Decimal):
        if value.is_nan():
            return math.nan
        if value.is_infinite() or value.is_zero() or abs(value.adjusted()) > 5000:
            size = math.inf if value.is_infinite() or value.adjusted() > 5000 else 0.0
            return -size if value.is_signed() else size
    if isinstance(value, float) and (value == 0 or not math.isfinite(value)):
        return value
    return Fraction(value)


@checked
def encode(value, format: str | Format, saturate: bool = False) -> int:
    """Round a number to a format, to nearest with ties to even, and return its code.

    The input is taken exactly (see ``exact_value``), so it is rounded once. Too large a
    number becomes Inf; NaN where the format has no Inf (E4M3, as OCP's non-saturating
    mode has it); the largest number where it has neither (E2M1).

    Args:
        value: a real number or a decimal string.
        format: a ``Format`` or its name.
        saturate: turn everything too large, Inf included, into the largest number.

    Raises:
        TypeError, ValueError: not a number, or NaN for a format without NaN. E8M0 has
            neither sign nor zero: both give NaN.
    """
    f = get(format)
    exact = exact_value(value)
    negative = math.copysign(1, exact) < 0 if isinstance(exact, float) else exact < 0
    sign = int(negative and f.signed) << f.magnitude_bits
    if exact != exact:
        if f.nan_code is None:
            raise ValueError(f"{f} has no NaN: give a number")
        return f.nan_code
    size = abs(exact)
    if not f.signed and (negative or size == 0):
        return f.nan_code
    if size == math.inf:
        code = f.max_code + 1
    elif size == 0:
        code = 0
    else:
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2) ** exponent  # now 2^exponent ≤ size
        exponent = max(exponent, f.min_exponent)
        # round() on a Fraction is exact and takes ties to the even integer. A carry
        # into the next power of two is right of itself: codes count upwards.
        steps = round(size / Fraction(2) ** (exponent - f.significand_bits))
        code = ((exponent - f.min_exponent) << f.significand_bits) + steps
        code -= 0 if f.subnormals else 1 << f.significand_bits
    if code > f.max_code:
        no_infinity = f.max_code if f.nan_code is None else f.nan_code
        beyond = f.inf_code if f.inf_code is not None else no_infinity
        code = f.max_code if saturate else beyond
    return max(code, 0) | sign


def round_number(value, format: str | Format, saturate: bool = False) -> Number:
    """Round a number to a format and return it taken apart: decode after encode."""
    return decode(encode(value, format, saturate), format)


def neighbors(code: int, format: str | Format) -> tuple[float | None, float | None]:
    """Return the next smaller and next larger value of a code's number.

    None stands where there is none: beyond the ends, and on both sides of NaN.
    """
    number = decode(code, format)
    f = number.format
    magnitude = number.code & (2**f.magnitude_bits - 1)
    place = -magnitude if number.sign else magnitude

    def value_at(place: int) -> float | None:
        last = f.max_code if f.inf_code is None else f.inf_code
        if abs(place) > last or (place < 0 and not f.signed):
            return None
        sign = int(place < 0) << f.magnitude_bits
        return decode(abs(place) | sign, f).value

    if number.kind == "nan":
        return None, None
    return value_at(place - 1), value_at(place + 1)


def ulp(value, format: str | Format):
    """Return the spacing of a format's numbers at a value: its unit in the last place.

    Args:
        value: a float or an array of floats.

    Returns:
        The same shape; NaN at NaN, Inf and beyond the format's largest number.
    """
    f = get(format)
    if torch.is_tensor(value):
        value = value.detach().cpu().to_dense()
        value = value.double() if value.is_floating_point() else value  # BF16, too
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"value={quoted(value)}: give a number, or an array of them")
    size = np.abs(array.astype(np.float64))
    _, exponent = np.frexp(np.where(size > 0, size, f.smallest_normal))
    exponent = np.maximum(exponent - 1, f.min_exponent)
    spacing = np.ldexp(1.0, exponent - f.significand_bits)
    spacing = np.where(size <= f.max, spacing, np.nan)
    return spacing if np.ndim(value) else float(spacing)


# ----------------------------------------------------------------- many numbers at once


def values(format: str | Format) -> np.ndarray:
    """Return the value of every code of a format of at most 19 bits, in code order.

    Returns:
        FP64 array of shape (2^bits,); Inf and NaN where the codes mean them.
    """
    f = get(format)
    if f.bits > 19:
        raise ValueError(f"{f} has 2^{f.bits} codes: give a format of at most 19 bits")
    codes = np.arange(2**f.bits)
    magnitude = codes % 2**f.magnitude_bits
    field, significand = np.divmod(magnitude, 2**f.significand_bits)
    normal = (field > 0) | (not f.subnormals)
    exponent = np.maximum(field - f.bias, f.min_exponent) - f.significand_bits
    size = np.ldexp((significand + normal * 2**f.significand_bits) * 1.0, exponent)
    size[magnitude > f.max_code] = np.nan
    if f.inf_code is not None:
        size[magnitude == f.inf_code] = np.inf
    return np.copysign(size, np.where(codes >> f.magnitude_bits, -1.0, 1.0))


CPU_CHUNK = 2**18  # FP32 numbers: the passes over one chunk stay in the L2 cache


def round_to(
    tensor: torch.Tensor, format: str | Format, saturate: bool = False
) -> torch.Tensor:
    """Round each number of a tensor to a format; keep the tensor's dtype and shape.

    This simulates a format on any machine: the values are those of the format, the
    storage stays what it was. Equal to ``encode`` bit for bit, on CPU and GPU.

    Args:
        tensor: FP32 or FP64, any shape. (Narrower dtypes may not be able to hold the
            result: call ``.float()`` on them first.)
        format: a ``Format`` or its name.
        saturate: as in ``encode``.

    Returns:
        A new contiguous tensor. Numbers of a format wider than the tensor's dtype
        are all numbers of that dtype: nothing changes. NaN stays NaN, also for E2M1,
        which has none. The result carries no gradient.
    """
    f = get(format)
    check("saturate", saturate, bool)
    kind = getattr(tensor, "dtype", f"{type(tensor).__name__} {quoted(tensor)}")
    if not torch.is_tensor(tensor) or kind not in (torch.float32, torch.float64):
        raise TypeError(f"cannot round {kind}: give a torch.Tensor of FP32 or FP64")
    source = tensor.detach().contiguous().view(-1)
    out = torch.empty_like(source)
    limits = torch.finfo(tensor.dtype)
    if f.epsilon <= limits.eps and f.max >= limits.max:
        return out.copy_(source).view(tensor.shape)  # nothing to round
    # FP32's own exponent range (TF32, BF16): rounding is integer arithmetic on bits.
    same_range = tensor.dtype == torch.float32 and f.exponent_bits == 8 and f.signed
    if same_range and not saturate and source.is_cuda:
        return _cuda_round_bits(23 - f.significand_bits)(source).view(tensor.shape)
    on_cpu = source.device.type == "cpu"
    chunk = CPU_CHUNK if on_cpu else max(source.numel(), 1)
    with torch.no_grad():
        for x, y in zip(source.split(chunk), out.split(chunk), strict=True):
            if same_range and not saturate:
                _round_bits(x, y, drop=23 - f.significand_bits)
            else:
                _round_quanta(x, y, f, saturate)
    return out.view(tensor.shape)


def _round_bits(x: torch.Tensor, out: torch.Tensor, drop: int) -> None:
    """Drop the last bits of FP32 words: to nearest, ties to even.

    Add half a unit less one, plus one more if the last kept bit is odd, and cut. The
    carry runs into the exponent as it should, up to Inf. Adding clamp(x, -0, -0) puts
    NaN back: it is -0 for every other x, and adding -0 changes nothing.
    """
    bits, rounded = x.view(torch.int32), out.view(torch.int32)
    torch.bitwise_right_shift(bits, drop, out=rounded)
    rounded.bitwise_and_(1).add_(bits).add_(2 ** (drop - 1) - 1)
    rounded.bitwise_and_(-(2**drop))
    out.add_(x.clamp(-0.0, -0.0))  # on a CPU four times as fast as a mask


@functools.cache
def _cuda_round_bits(drop: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Compile ``_round_bits`` for the GPU as one kernel: one pass instead of seven.

    `torch.cuda.jiterator` needs neither Triton nor a C++ compiler.
    """
    code = f"""
    template <typename T> T round_bits(T x) {{
        unsigned bits = __float_as_uint(x);
        unsigned odd = (bits >> {drop}) & 1u;
        bits = (bits + {2 ** (drop - 1) - 1}u + odd) & ~{2**drop - 1}u;
        return x == x ? __uint_as_float(bits) : x;
    }}"""
    return torch.cuda.jiterator._create_jit_fn(code)


def _round_quanta(
    x: torch.Tensor, out: torch.Tensor, f: Format, saturate: bool
) -> None:
    """Divide by the spacing, round to an integer (ties to even), multiply again."""
    integer, exponent_mask = {
        torch.float32: (torch.int32, 0x7F800000),
        torch.float64: (torch.int64, 0x7FF << 52),
    }[x.dtype]
    power = x.view(integer).bitwise_and(exponent_mask).view(x.dtype)  # 2^exponent or 0
    limits = torch.finfo(x.dtype)
    low = max(f.smallest_normal, limits.smallest_normal * limits.eps)
    quantum = power.clamp_(low, min(2.0**f.max_exponent, limits.max)).mul_(f.epsilon)
    torch.div(x, quantum, out=out)
    out.round_().mul_(quantum)
    beyond = out.abs() > f.max
    if saturate or (f.inf_code is None and f.nan_code is None):
        out.clamp_(-f.max, f.max)
    elif f.inf_code is None:
        out.masked_fill_(beyond, math.nan)
    else:
        torch.where(beyond, out.sign().mul_(math.inf), out, out=out)
    if not f.signed:
        out.clamp_(min=f.smallest_normal).masked_fill_(x <= 0, math.nan)
