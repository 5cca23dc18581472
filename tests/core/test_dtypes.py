"""Decoding is exact and encoding rounds once, to nearest even: held against the formats' own definition."""

from __future__ import annotations

import math
import pickle
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mergepipe.core.dtypes import DTYPES, TORCH_NAMES, decode, dtype, encode, torch_name


@dataclass(frozen=True)
class Format:
    """A binary float: `mantissa` stored bits, exponent `bias`, code of infinity (or of the only NaN: `finite_only`)."""

    code: str
    bits: int
    mantissa: int
    bias: int
    top: int
    finite_only: bool = False

    def value(self, code: int) -> float:
        """The magnitude a positive code stands for, as if the format went on for ever."""
        exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        if exponent == 0:
            return math.ldexp(fraction, 1 - self.bias - self.mantissa)
        return math.ldexp((1 << self.mantissa) + fraction, exponent - self.bias - self.mantissa)


FORMATS = [
    Format("F8_E4M3", 8, 3, 7, 0x7F, finite_only=True),
    Format("F8_E5M2", 8, 2, 15, 0x7C),
    Format("F16", 16, 10, 15, 0x7C00),
    Format("BF16", 16, 7, 127, 0x7F80),
]
by_format = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.code)


def bytes_of(codes: Any, form: Format) -> NDArray[np.uint8]:
    """Codes as stored."""
    return np.asarray(codes, f"<u{form.bits // 8}").view(np.uint8)


def rounded(values: NDArray[np.float64], form: Format) -> NDArray[np.int64]:
    """Codes of `values` by the definition: the nearest representable one, ties to the even code, NaN as −1."""
    table = np.array([form.value(code) for code in range(form.top + 1)])
    size = np.abs(values)
    above = np.clip(np.searchsorted(table, size), 1, form.top)
    low, high = table[above - 1], table[above]
    nearer = np.where(size - low < high - size, above - 1, above)
    tie = size - low == high - size
    codes = np.where(tie, np.where(above % 2 == 0, above, above - 1), nearer)
    codes = np.where(size >= table[-1], form.top, codes)
    if form.finite_only:
        codes = np.where(codes == form.top, -1, codes)
    signed = np.where(np.signbit(values) & (codes >= 0), codes + (1 << (form.bits - 1)), codes)
    return np.where(np.isnan(values), -1, signed)


def encoded(values: NDArray[Any], form: Format) -> NDArray[np.int64]:
    """Codes that `encode` gives; any NaN as −1."""
    raw = encode(values, dtype(form.code), np.empty(values.size * form.bits // 8, np.uint8))
    codes = raw.view(f"<u{form.bits // 8}").astype(np.int64)
    size = codes & ((1 << (form.bits - 1)) - 1)
    return np.where(size >= form.top if form.finite_only else size > form.top, -1, codes)


def interesting(form: Format) -> NDArray[np.float64]:
    """Every representable magnitude, every midpoint, their float64 neighbours, both signs, and the special values."""
    table = np.array([form.value(code) for code in range(form.top + 1)])
    middles = (table[1:] + table[:-1]) / 2
    near = np.concatenate([table, middles])
    near = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, 0), near * (1 + 2.0**-40)])
    specials = np.array([0.0, np.inf, np.nan, 1e300, 1e-300, 3.4e38, 1e39])
    return np.concatenate([near, -near, specials, -specials])


@by_format
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_decoding_is_exact_for_every_code(form: Format, kind: Any) -> None:
    """All codes of the format, subnormals, ±0, infinities and NaN included, decode to what they stand for."""
    codes = np.arange(1 << form.bits)
    out = decode(bytes_of(codes, form), dtype(form.code), np.empty(codes.size, kind))
    half = 1 << (form.bits - 1)
    for sign, part in ((1.0, out[:half]), (-1.0, out[half:])):
        assert part[: form.top].tolist() == [sign * form.value(code) for code in range(form.top)]
        assert (np.signbit(part[: form.top]) == (sign < 0)).all()
        if not form.finite_only:
            assert part[form.top] == sign * math.inf
        assert np.isnan(part[form.top + (not form.finite_only) :]).all()


@by_format
def test_every_number_survives_decoding_and_encoding(form: Format) -> None:
    """Reading and writing without arithmetic changes no bit of a number."""
    codes = np.concatenate([np.arange(form.top), np.arange(form.top) + (1 << (form.bits - 1))])
    for kind in (np.float32, np.float64):
        out = decode(bytes_of(codes, form), dtype(form.code), np.empty(codes.size, kind))
        assert (encoded(out, form) == codes).all()


@by_format
def test_encoding_float64_rounds_once_to_nearest_even(form: Format) -> None:
    """Midpoints go to the even code and their closest neighbours to the nearer one: no rounding by way of float32."""
    values = interesting(form)
    assert (encoded(values, form) == rounded(values, form)).all()


@by_format
def test_encoding_float32_rounds_to_nearest_even(form: Format) -> None:
    """The same for float32 values, at random over all bit patterns and at every midpoint."""
    generator = np.random.default_rng(3)
    anything = generator.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        values = np.concatenate([interesting(form).astype(np.float32), anything])
    with np.errstate(invalid="ignore"):
        exact = values.astype(np.float64)
    assert (encoded(values, form) == rounded(exact, form)).all()


@by_format
def test_encoding_random_float64_rounds_to_nearest_even(form: Format) -> None:
    """The same for float64 values whose exponents reach beyond the format on both sides."""
    generator = np.random.default_rng(4)
    values = generator.standard_normal(100_000) * 2.0 ** generator.integers(-160, 140, 100_000)
    assert (encoded(values, form) == rounded(values, form)).all()


def test_float32_and_float64_are_stored_as_ieee_says() -> None:
    """F64 keeps every bit; F32 of float64 values is the C library's own rounding, subnormals too."""
    generator = np.random.default_rng(5)
    values = generator.standard_normal(2000) * 2.0 ** generator.integers(-155, 120, 2000)
    values = np.concatenate([values, [0.0, -0.0, np.inf, 5e-324, -1e-46]])
    wide = encode(values, dtype("F64"), np.empty(values.size * 8, np.uint8))
    assert wide.tobytes() == values.tobytes()
    narrow = encode(values, dtype("F32"), np.empty(values.size * 4, np.uint8))
    assert narrow.tobytes() == b"".join(struct.pack("<f", value) for value in values)
    assert decode(wide, dtype("F64"), np.empty(values.size)).tobytes() == values.tobytes()


def test_signalling_nans_are_decoded_without_a_warning() -> None:
    """A NaN in a file is met by the checks of execution, not by a warning on stderr."""
    raw = np.array([0x7F800001, 0x7FC00000], "<u4").view(np.uint8)
    with np.errstate(all="raise"):
        assert np.isnan(decode(raw, dtype("F32"), np.empty(2, np.float64))).all()


@by_format
def test_torch_reads_and_rounds_the_same(form: Format) -> None:
    """torch, which loads what is published, agrees on every code and on float32 values."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, torch_name(form.code))
    codes = np.arange(1 << form.bits, dtype=f"<u{form.bits // 8}")
    theirs = torch.from_numpy(codes.copy()).view(kind).to(torch.float32).numpy()
    ours = decode(codes.view(np.uint8), dtype(form.code), np.empty(codes.size, np.float32))
    assert np.array_equal(ours, theirs, equal_nan=True)
    largest = form.value(form.top - 1)
    values = np.clip(np.random.default_rng(6).standard_normal(50_000) * largest / 4, -largest, largest)
    values = values.astype(np.float32)
    stored = torch.from_numpy(values).to(kind).view(torch.uint8).numpy()
    assert (encode(values, dtype(form.code), np.empty(stored.size, np.uint8)) == stored.reshape(-1)).all()


@pytest.mark.parametrize(
    ("code", "precision", "smallest"),
    [("F64", 53, 2.0**-1074), ("F32", 24, 2.0**-149), ("BF16", 8, 2.0**-133), ("F16", 11, 2.0**-24),
     ("F8_E4M3", 4, 2.0**-9), ("F8_E5M2", 3, 2.0**-16)],
)  # fmt: skip
def test_what_bounds_take_from_a_dtype(code: str, precision: int, smallest: float) -> None:
    """Significand bits with the hidden one, and the smallest positive number."""
    assert dtype(code).precision == precision
    assert dtype(code).smallest == smallest


@by_format
def test_from_overflow_on_rounding_leaves_the_numbers(form: Format) -> None:
    """Below `overflow` every float rounds to a finite number; just above, none does."""
    limit = dtype(form.code).overflow
    below = np.array([np.nextafter(limit, 0), -np.nextafter(limit, 0)])
    above = np.array([np.nextafter(limit, np.inf), -np.nextafter(limit, np.inf)])
    assert set(encoded(below, form) & ((1 << (form.bits - 1)) - 1)) == {form.top - 1}
    assert (rounded(above, form) == encoded(above, form)).all()
    assert set(rounded(above, form) & ((1 << (form.bits - 1)) - 1)) <= {form.top, (1 << (form.bits - 1)) - 1}


def test_float32_overflows_from_float64() -> None:
    """A float64 result may be beyond float32; a float32 one can only be infinite already."""
    limit = dtype("F32").overflow
    values = np.array([np.nextafter(limit, 0), limit])
    stored = encode(values, dtype("F32"), np.empty(8, np.uint8)).view("<f4")
    assert np.isfinite(stored).tolist() == [True, False]
    assert dtype("F64").overflow == math.inf


def test_integers_and_booleans_are_no_floats() -> None:
    """They have sizes, and are only ever copied."""
    sizes = {code: kind.itemsize for code, kind in DTYPES.items() if not kind.is_float}
    assert sizes == {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}


def test_arithmetic_is_float32_but_for_float64() -> None:
    """The compute dtype of every storage dtype."""
    wide = [code for code, kind in DTYPES.items() if kind.is_float and kind.compute == np.float64]
    assert wide == ["F64"]


def test_torch_names_lead_back() -> None:
    """`torch_name` of every float code is one of the names recipes may use for it."""
    for code, kind in DTYPES.items():
        if kind.is_float:
            assert TORCH_NAMES[torch_name(code)] == code


def test_dtypes_are_one_object_each_even_pickled() -> None:
    """Values that hold a dtype can go to another process and still compare equal."""
    for code, kind in DTYPES.items():
        assert pickle.loads(pickle.dumps(kind)) is dtype(code)


def test_an_unknown_code_is_a_key_error() -> None:
    """Whoever parses a header turns this into a message of its own."""
    with pytest.raises(KeyError):
        dtype("F4_E2M1")
