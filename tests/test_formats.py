"""helpers.formats against torch, ml_dtypes, struct and a second formula."""

import math
import struct
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import formats

SMALL = [f for f in formats.ALL.values() if f.bits <= 19]
ML_DTYPES = {
    "FP8 E4M3": ml_dtypes.float8_e4m3fn,
    "FP8 E5M2": ml_dtypes.float8_e5m2,
    "FP4 E2M1": ml_dtypes.float4_e2m1fn,
    "E8M0": ml_dtypes.float8_e8m0fnu,
    "BF16": ml_dtypes.bfloat16,
}


def bits_of(tensor):
    """View FP32 or FP64 numbers as integers, all NaN as one: equal means bit-equal."""
    integer = torch.int32 if tensor.dtype == torch.float32 else torch.int64
    nan = torch.full_like(tensor, math.nan)
    return torch.where(tensor.isnan(), nan, tensor).view(integer)


def assert_same_bits(got, expected):
    wrong = (bits_of(got) != bits_of(expected)).nonzero().flatten()
    assert len(wrong) == 0, (len(wrong), got[wrong[:5]], expected[wrong[:5]])


def same(a, b):
    return a == b and math.copysign(1, a) == math.copysign(1, b) or (a != a and b != b)


# ----------------------------------------------------------------------- decode, encode


@pytest.mark.parametrize(
    "name, dtype", [("FP16", torch.float16), ("BF16", torch.bfloat16)]
)
def test_all_16_bit_codes_decode_as_torch_reads_them(name, dtype):
    codes = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    torch_values = codes.view(dtype).double()
    assert_same_bits(torch.from_numpy(formats.values(name)), torch_values)
    for code in range(2**16):
        assert same(formats.decode(code, name).value, torch_values[code].item())


@pytest.mark.parametrize("name", ["FP8 E4M3", "FP8 E5M2", "FP4 E2M1", "E8M0"])
def test_all_small_codes_decode_as_ml_dtypes_reads_them(name):
    f = formats.get(name)
    codes = np.arange(2**f.bits, dtype=np.uint8)
    oracle = codes.view(ML_DTYPES[name]).astype(np.float64)
    for code in range(2**f.bits):
        assert same(formats.decode(code, f).value, oracle[code]), code
    assert_same_bits(torch.from_numpy(formats.values(f)), torch.from_numpy(oracle))


def test_all_tf32_codes_decode_as_fp32_words_with_13_zeros():
    codes = np.arange(2**19, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # NaN
        oracle = (codes << 13).view(np.float32).astype(np.float64)
    assert_same_bits(torch.from_numpy(formats.values("TF32")), torch.from_numpy(oracle))
    for code in range(0, 2**19, 7):
        assert same(formats.decode(code, "TF32").value, oracle[code])


@pytest.mark.parametrize("f", SMALL, ids=str)
def test_encode_inverts_decode(f):
    for code in range(0, 2**f.bits, 1 if f.bits <= 16 else 5):
        number = formats.decode(code, f)
        if number.kind != "nan":
            assert formats.encode(number.value, f) == code


@given(st.integers(0, 2**32 - 1))
def test_fp32_codes_match_struct(code):
    value = formats.decode(code, "FP32").value
    assert same(value, struct.unpack(">f", code.to_bytes(4, "big"))[0])
    if value == value:
        assert formats.encode(value, "FP32") == code


@given(st.integers(0, 2**64 - 1))
def test_fp64_codes_match_struct(code):
    value = formats.decode(code, "FP64").value
    assert same(value, struct.unpack(">d", code.to_bytes(8, "big"))[0])
    if value == value:
        assert formats.encode(value, "FP64") == code


@given(st.floats(allow_nan=False))
@example(65519.999)
@example(65520.0)
def test_encode_takes_the_nearest_number_and_the_even_code_of_two(value):
    for f in SMALL:
        if f.bits > 16 or not f.signed:
            continue
        number = formats.round_number(value, f)
        if number.kind in ("inf", "nan") or abs(value) > f.max:
            continue
        for other in formats.neighbors(number.code, f):
            if other is None or math.isinf(other):
                continue
            mine = abs(Fraction(number.value) - Fraction(value))
            theirs = abs(Fraction(other) - Fraction(value))
            assert mine < theirs or (mine == theirs and number.code % 2 == 0)


def test_decimal_strings_are_rounded_once_not_twice():
    # Just above a tie in FP16, by less than FP64 can hold: via FP64 it becomes the tie.
    above_tie = "1.00048828125000000000000000000001"
    assert float(above_tie) == 1 + 2**-11
    assert formats.round_number(float(above_tie), "FP16").value == 1.0
    assert formats.round_number(above_tie, "FP16").value == 1 + 2**-10


@pytest.mark.parametrize(
    "value, expected",
    [
        ("1e999999999", math.inf),
        ("-1e999999999", -math.inf),
        ("1e-999999999", 0.0),
        ("-0", -0.0),
        (-0.0, -0.0),
        ("nan", math.nan),
        (10**400, math.inf),
        (Decimal("0.5"), 0.5),
        (Fraction(1, 3), 0.333251953125),
        (np.float32(2.5), 2.5),
        (torch.tensor(2.5), 2.5),
        (65519, 65504.0),
        (65520, math.inf),
        (2049, 2048.0),
        (2**-25, 0.0),
        (2**-25 + 2**-40, 2**-24),
    ],
)
def test_fp16_edges(value, expected):
    assert same(formats.round_number(value, "FP16").value, expected)


def test_overflow_follows_each_format():
    assert formats.round_number(464, "E4M3").value == 448
    assert math.isnan(formats.round_number(464.01, "E4M3").value)
    assert formats.round_number(464.01, "E4M3", saturate=True).value == 448
    assert formats.round_number(math.inf, "E4M3", saturate=True).value == 448
    assert formats.round_number(-61440, "E5M2").value == -math.inf
    assert formats.round_number(1e9, "E2M1").value == 6
    assert math.isnan(formats.round_number(-1, "E8M0").value)


@pytest.mark.parametrize("name", ["FP64", "FP32", "BF16", "FP16", "E4M3", "E5M2"])
def test_properties_agree_with_finfo(name):
    f, info = formats.get(name), torch.finfo(formats.get(name).dtype)
    assert (f.max, f.epsilon, f.bits) == (info.max, info.eps, info.bits)
    assert f.smallest_normal == info.smallest_normal
    assert f.smallest_subnormal == formats.decode(1, f).value
    assert f.storage_bytes == f.dtype.itemsize


def test_tf32_is_19_bits_kept_in_32():
    assert formats.TF32.bits == 19
    assert formats.TF32.storage_bytes == 4
    assert formats.TF32.max_exponent == formats.FP32.max_exponent


@pytest.mark.parametrize("f", SMALL, ids=str)
def test_neighbors_and_ulp_walk_the_sorted_values(f):
    finite = np.unique(formats.values(f)[np.isfinite(formats.values(f))])
    for index in range(1, len(finite) - 1, 1 if f.bits <= 8 else 97):
        code = formats.encode(finite[index], f)
        below, above = formats.neighbors(code, f)
        assert (below, above) == (finite[index - 1], finite[index + 1])
        if finite[index] > 0:
            assert formats.ulp(finite[index], f) == above - finite[index]
    assert math.isnan(formats.ulp(math.inf, f))
    assert formats.ulp(np.array([[1.0, 2.0]]), f).shape == (1, 2)


@pytest.mark.parametrize("text", ["1e60", "1e-60", "1.7976931348623157e308", "4e-324"])
def test_fp64_strings_are_what_python_reads(text):
    assert formats.round_number(text, "FP64").value == float(text)


def test_subnormal_input_rounds_into_a_format_of_wider_range():
    x = (torch.arange(1, 5000, dtype=torch.int32) * 1601).view(torch.float32)
    wide = formats.Format("wide", 9, 4)
    scalar = [formats.round_number(v, wide).value for v in x.tolist()]
    got = formats.round_to(x.double(), wide)
    assert_same_bits(got, torch.tensor(scalar, dtype=torch.float64))


def test_neighbors_at_the_ends():
    assert formats.neighbors(np.uint16(0x8001), "FP16") == (-(2**-23), 0.0)
    assert formats.neighbors(0, "FP16") == (-(2**-24), 2**-24)
    assert formats.neighbors(0x8000, "FP16") == (-(2**-24), 2**-24)
    assert formats.neighbors(0x7C00, "FP16") == (65504, None)
    assert formats.neighbors(0xFC00, "FP16") == (None, -65504)
    assert formats.neighbors(0x7E00, "FP16") == (None, None)
    assert formats.neighbors(formats.E4M3.max_code, "E4M3") == (416, None)
    assert formats.neighbors(0, "E8M0")[0] is None


def test_a_number_spells_itself_out():
    number = formats.round_number("1.234567890", "TF32")
    assert number.exact == "1.234375"
    assert number.fields == ("0", "01111111", "0011110000")
    assert number.formula == "+2^(127 - 127) × (1 + 240/1024)"
    assert formats.decode(1, "FP16").formula == "+2^(1 - 15) × (0 + 1/1024)"
    assert formats.decode(0xFC00, "FP16").formula == "-infinity"


# ----------------------------------------------------------------------------- round_to


def random_words(count, seed):
    words = torch.Generator().manual_seed(seed)
    low, high = -(2**31), 2**31
    bits = torch.randint(low, high, (count,), generator=words, dtype=torch.int64)
    return bits.to(torch.int32).view(torch.float32)


def awkward_words(seed):
    """10^7 FP32 numbers: random bits, ties of all formats, near overflow, subnormal."""
    x = random_words(4_000_000, seed)
    ties = random_words(3_000_000, seed + 1).view(torch.int32)
    for part, drop in zip(ties.split(500_000), (13, 16, 20, 21, 22, 13), strict=True):
        part.bitwise_and_(-(2**drop)).bitwise_or_(2 ** (drop - 1))
    near = random_words(1_000_000, seed + 2).view(torch.int32)
    near.bitwise_and_(-0x7F800001).bitwise_or_(0x7F000000)  # exponent 127
    tiny = random_words(1_000_000, seed + 3).view(torch.int32) & -0x7F800001
    edges = torch.empty(1_000_000).uniform_(-17, 17).exp2() * 1.01
    special = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        65519.99,
        65520.0,
        464.0,
        1e-45,
    ]
    words = [
        ties.view(torch.float32),
        near.view(torch.float32),
        tiny.view(torch.float32),
    ]
    nans = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32)
    return torch.cat(
        [x, *words, edges, torch.tensor(special), nans.view(torch.float32)]
    )


@pytest.mark.parametrize("name", ["BF16", "FP16"])
def test_round_to_equals_torch_casts_on_ten_million(name):
    x = awkward_words(0)
    assert len(x) >= 10**7
    assert_same_bits(formats.round_to(x, name), x.to(formats.get(name).dtype).float())


@pytest.mark.parametrize("name", ["FP8 E4M3", "FP8 E5M2", "FP4 E2M1"])
def test_round_to_equals_ml_dtypes_on_ten_million(name):
    x = awkward_words(1)
    if name == "FP4 E2M1":
        x = x[~x.isnan()]  # no NaN in the format: round_to leaves it NaN
    with np.errstate(invalid="ignore"):  # NaN
        oracle = x.numpy().astype(ML_DTYPES[name]).astype(np.float32)
    assert_same_bits(formats.round_to(x, name), torch.from_numpy(oracle))


def test_round_to_tf32_equals_a_second_formula_on_ten_million():
    x = awkward_words(2)
    # FP64 holds FP32 exactly, and its own addition rounds to nearest even: adding and
    # taking away 3 × 2^(exponent + 41) leaves 10 bits behind the leading one.
    wide = x.double()
    _, exponent = torch.frexp(wide)
    exponent = torch.where(wide == 0, -126, exponent - 1).clamp(-126, 127)
    big = torch.ldexp(torch.full_like(wide, 1.5), exponent + 42)
    rounded = torch.where(wide.isfinite(), (wide + big) - big, wide)
    oracle = torch.copysign(rounded, wide).float()  # FP32's overflow is TF32's
    assert_same_bits(formats.round_to(x, "TF32"), oracle)
    assert_same_bits(formats.round_to(x.double(), "TF32").float(), oracle)


@pytest.mark.parametrize("f", formats.ALL.values(), ids=str)
def test_round_to_equals_the_scalar_encode(f):
    x = random_words(4000, 5)
    x = torch.cat([x, torch.empty(4000).uniform_(-10, 10), awkward_words(3)[-13:]])
    x = x[~x.isnan()] if f.nan_code is None else x
    for saturate in (False, True):
        for tensor in (x, x.double()):
            got = formats.round_to(tensor, f, saturate).double()
            scalar = [formats.round_number(v, f, saturate).value for v in x.tolist()]
            if f == formats.FP64 or (f == formats.FP32 and tensor is x):
                scalar = tensor.double().tolist()  # nothing to round, nor to saturate
            assert_same_bits(got, torch.tensor(scalar, dtype=torch.float64))


def test_round_to_keeps_shape_dtype_and_input():
    x = torch.randn(3, 4, 5).transpose(0, 2)
    before = x.clone()
    y = formats.round_to(x, "TF32")
    assert y.shape == x.shape and y.dtype == x.dtype and torch.equal(x, before)
    assert formats.round_to(torch.empty(0, 3), "FP16").shape == (0, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("f", formats.ALL.values(), ids=str)
def test_the_gpu_rounds_as_the_cpu_does(f):
    x = awkward_words(4)
    for saturate in (False, True):
        on_gpu = formats.round_to(x.cuda(), f, saturate).cpu()
        assert_same_bits(on_gpu, formats.round_to(x, f, saturate))


# ---------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: formats.encode("abc", "FP16"), ValueError, ["'abc'", "decimal"]),
        (lambda: formats.encode("", "FP16"), ValueError, ["''", "decimal"]),
        (lambda: formats.encode(1 + 2j, "FP16"), TypeError, ["(1+2j)", "real number"]),
        (lambda: formats.encode(None, "FP16"), TypeError, ["None", "real number"]),
        (lambda: formats.encode(True, "FP16"), TypeError, ["True", "real number"]),
        (lambda: formats.encode("nan", "E2M1"), ValueError, ["E2M1", "no NaN"]),
        (lambda: formats.decode(65536, "FP16"), ValueError, ["65536", "0 to 65535"]),
        (lambda: formats.decode(-1, "FP16"), ValueError, ["-1", "0 to 65535"]),
        (lambda: formats.decode(1.0, "FP16"), TypeError, ["1.0", "integer"]),
        (lambda: formats.get("FP12"), ValueError, ["'FP12'", "TF32", "FP8 E4M3"]),
        (lambda: formats.get(16), ValueError, ["16", "TF32"]),
        (lambda: formats.get(""), ValueError, ["''", "TF32"]),
        (lambda: formats.values("FP32"), ValueError, ["FP32", "19 bits"]),
        (lambda: formats.Format("mine", 1, 3), ValueError, ["1", "2 to 11"]),
        (lambda: formats.Format("mine", 4, 3, signed=False), ValueError, ["scale"]),
        (lambda: formats.encode([1.0, 2.0], "FP16"), TypeError, ["[1.0, 2.0]"]),
        (lambda: formats.encode(np.ones(2), "FP16"), TypeError, ["real number"]),
        (lambda: formats.encode(torch.ones(2), "FP16"), TypeError, ["real number"]),
        (lambda: formats.Format("mine", 7, 0), ValueError, ["0", "1 to 52"]),
        (lambda: formats.Format("mine", 4, 53), ValueError, ["53", "1 to 52"]),
        (lambda: formats.Format("mine", 4, 3, "inf"), ValueError, ["'inf'", "'ieee'"]),
        (lambda: formats.round_to(torch.arange(3), "BF16"), TypeError, ["torch.int64"]),
        (lambda: formats.round_to([1.0], "BF16"), TypeError, ["list", "torch.Tensor"]),
        (
            lambda: formats.round_to(torch.ones(2, dtype=torch.float16), "BF16"),
            TypeError,
            ["torch.float16", "FP32 or FP64"],
        ),
    ],
)
def test_bad_input_is_quoted_and_answered(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_a_value_error(text):
    try:
        formats.encode(text, "BF16")
    except ValueError as error:
        assert repr(text) in str(error)
