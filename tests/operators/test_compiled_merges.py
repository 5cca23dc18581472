"""The compiled kernels give the bytes that decoding, the operator's own arithmetic and encoding give, or decline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.arrays import Array, Scratch
from mergepipe.core.dtypes import decode, dtype, encode
from mergepipe.core.random import ranked_keep_mask, uniform16
from mergepipe.operators.additive import Mixture
from mergepipe.operators.compiled_merges import STRIP, _address, _needed_ranks
from mergepipe.operators.consensus import Election
from mergepipe.operators.contract import Delta, Tile
from mergepipe.operators.formula import Formula, Part
from mergepipe.operators.kernel import Kernel, Raw, kernel_for
from mergepipe.operators.registry import operator
from mergepipe.operators.sce import SceCoefficients
from mergepipe.operators.sparsify import Band, Drop, RankedDrop, Trim
from mergepipe.operators.strips import drop_by_rank, ranking_room

CODES = ("BF16", "F16", "F32")
# Few distinct values, with both zeros and ties, and those at float16's and bfloat16's ends.
COARSE = np.array([0.0, -0.0, 0.125, -0.125, 0.25, 0.5, -1.0, 6.0e-8, 6.1e-5, -6.2e-5, 3e-5], np.float32)
NUMBERS = st.sampled_from([1.0, 0.5, -0.25, 0.0, 1 / 3, -0.0]) | st.floats(-2, 2)
THRESHOLDS = st.sampled_from([float(abs(value)) for value in COARSE]) | st.floats(0, 1, width=32)


def narrow(value: float) -> float:
    """Coefficients are numbers that float32 holds."""
    return float(np.float32(value))


def stored(values: NDArray[Any], code: str) -> Raw:
    """The values rounded to a dtype, as bytes."""
    with np.errstate(over="ignore"):
        return encode(values.astype(np.float32), dtype(code), np.empty(values.size * dtype(code).itemsize, np.uint8))


def by_arrays(
    coefficients: Any, codes: list[str], start: int, base: Raw, experts: list[Raw | None], out: str
) -> NDArray[np.float32]:
    """The merge before rounding, by `Operator.combine`."""
    count = base.size // dtype(codes[0]).itemsize
    scratch = Scratch(count, np.dtype(np.float32))
    origin = decode(base, dtype(codes[0]), np.empty(count, np.float32))

    def delta_of(raw: Raw, code: str) -> Delta:
        def write(into: Array) -> None:
            decode(raw, dtype(code), into)
            np.subtract(into, origin, out=into)

        return write

    deltas = [None if raw is None else delta_of(raw, code) for raw, code in zip(experts, codes[1:], strict=True)]
    merged = np.empty(count, np.float32)
    method = operator("sce" if isinstance(coefficients, SceCoefficients) else "ties")
    with np.errstate(all="ignore"):
        method.combine(Tile(start, count, origin, deltas, scratch), coefficients, merged)
    return merged


@st.composite
def trims(draw: st.DrawFn, most: int) -> Trim:
    """A threshold that values meet, and a cut."""
    return Trim(draw(THRESHOLDS), draw(st.integers(0, most)))


@st.composite
def parts(draw: st.DrawFn, most: int, row: int) -> Part | None:
    """What is kept of a term; cuts up to element `most`."""
    factor = narrow(draw(st.floats(0, 4)))
    density = draw(st.sampled_from([1e-9, 0.5, 0.9, 1 - 1e-9]) | st.floats(0.01, 0.99))
    kind = draw(st.sampled_from(["whole", "band", "drop", "ranked"] if row else ["whole", "band", "drop"]))
    if kind == "band":
        outer, inner = draw(st.none() | trims(most)), draw(st.none() | trims(most))
        return Band(outer, inner, factor)
    if kind == "drop":
        return Drop(draw(st.integers(0, 99)), density, factor)
    if kind == "ranked":
        epsilon = draw(st.floats(0, 0.99)) * min(density, 1 - density)
        return RankedDrop(draw(st.integers(0, 99)), density, epsilon, row, factor)
    return None


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, list[str], str, int, list[NDArray[np.float32]], list[bool]]:
    """Coefficients, stored dtypes and the output's, the tile's start, values of base and experts, what is read."""
    row = draw(st.sampled_from([0, 0, 1, 3, 7, 130, STRIP + 1]))
    count = draw(st.integers(1, 40) | st.sampled_from([STRIP - 1, STRIP, STRIP + 1, 2 * STRIP + 17]))
    start = draw(st.integers(0, 100))
    if row:
        count, start = max(1, count // row) * row, start * row
    terms = draw(st.integers(0, 5))
    weights = tuple(narrow(draw(NUMBERS)) for _ in range(terms))
    scale = narrow(draw(NUMBERS))
    several = [draw(parts(start + count + 5, row)) for _ in range(terms)]
    rule = draw(st.sampled_from(["mixture", "election", "sce"]))
    coefficients: Any
    if rule == "sce":
        selection = draw(st.none() | trims(start + count + 5))
        coefficients = SceCoefficients(tuple(abs(weight) for weight in weights), selection, draw(st.booleans()))
    elif rule == "mixture":
        divisor, base = draw(st.sampled_from([1.0, 0.75, -3.0])), draw(st.sampled_from([1.0, 0.0, 0.3, -1.25]))
        coefficients = Formula(Mixture(weights, divisor, scale, narrow(base)), tuple(several))
    else:
        coefficients = Formula(Election(weights, draw(st.booleans()), scale), tuple(several))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = []
    for _ in range(terms + 1):
        fine = rng.standard_normal(count) * 10.0 ** rng.integers(-9, 3, count)
        values.append(np.where(rng.random(count) < 0.5, rng.choice(COARSE, count), fine).astype(np.float32))
    codes = [draw(st.sampled_from(CODES)) for _ in range(terms + 1)]
    read = draw(st.lists(st.booleans(), min_size=terms, max_size=terms) | st.just([True] * terms))
    return coefficients, codes, draw(st.sampled_from(CODES)), start, values, read


def kernel_of(coefficients: Any, codes: list[str], out: str) -> Kernel:
    """The kernel; there must be one."""
    kernel = kernel_for(coefficients, dtype(codes[0]), [dtype(code) for code in codes[1:]], dtype(out))
    assert kernel is not None
    return kernel


@given(problems())
def test_same_bytes_as_the_arrays(
    problem: tuple[Any, list[str], str, int, list[NDArray[np.float32]], list[bool]],
) -> None:
    """Any formula, dtype, length, position and reads, of finite values that fit: the kernel does not decline."""
    coefficients, codes, out, start, values, read = problem
    base, *experts = (stored(each, code) for each, code in zip(values, codes, strict=True))
    raws = [raw if seen else None for raw, seen in zip(experts, read, strict=True)]
    merged = by_arrays(coefficients, codes, start, base, raws, out)
    found = np.full(merged.size * dtype(out).itemsize, 0xAA, np.uint8)
    fits = bool((np.abs(merged.astype(np.float64)) < dtype(out).overflow).all())
    assert kernel_of(coefficients, codes, out).merge(start, base, raws, found) is fits
    if fits:
        assert found.tobytes() == stored(merged, out).tobytes()


@given(st.sampled_from(CODES), st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 2 * STRIP), st.booleans())
def test_declines_what_is_not_finite(code: str, odd: float, where: int, in_base: bool) -> None:
    """In the base or an expert, kept or dropped, wherever it is."""
    values = np.ones(2 * STRIP + 1, np.float32)
    spoilt = values.copy()
    spoilt[where] = odd
    base, expert = (stored(each, code) for each in ((spoilt, values) if in_base else (values, spoilt)))
    out = np.empty_like(base)
    for rule in (Mixture((0.5,)), Election((0.5,), True, 1.0)):
        for part in (None, Band(None, Trim(0.25, 0), 1.0), Drop(3, 1e-9, 1.0)):
            kernel = kernel_of(Formula(rule, (part,)), [code, code], code)
            assert not kernel.merge(0, base, [expert], out)
            assert kernel.is_finite(base) is not in_base


@pytest.mark.parametrize("code", ["BF16", "F32"])
def test_declines_what_may_overflow_on_the_way(code: str) -> None:
    """Finite values whose weighted sum, or difference, float32 may not hold, although the result might fit."""
    large = np.full(5, 3e38, np.float32)
    base, expert = stored(-large, code), stored(large, code)
    kernel = kernel_of(Formula(Mixture((0.5,)), (None,)), [code, code], code)
    assert not kernel.merge(0, base, [expert], np.empty_like(base))
    kernel = kernel_of(Formula(Election((1e38, 1e38), True, 1.0), (None, None)), [code] * 3, code)
    ones = stored(np.full(5, 1e3, np.float32), code)
    assert not kernel.merge(0, stored(np.zeros(5, np.float32), code), [ones, ones], np.empty_like(ones))


@pytest.mark.parametrize("code", CODES)
def test_rounds_as_encoding_does(code: str) -> None:
    """Every float32 exponent, halves and their neighbours, of both signs: what fits is rounded to nearest even."""
    exponents = np.arange(256, dtype=np.uint32) << 23
    tails = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF], np.uint32)
    patterns = (exponents[:, None] | tails).reshape(-1)
    both = np.concatenate([patterns, patterns | np.uint32(0x8000_0000)]).view(np.float32)
    both = both[np.isfinite(both)]
    values = both[np.abs(both.astype(np.float64)) < dtype(code).overflow]
    out = np.empty(values.size * dtype(code).itemsize, np.uint8)
    kernel = kernel_of(Formula(Mixture(()), ()), ["F32"], code)
    assert kernel.merge(0, values.view(np.uint8), [], out)
    assert out.tobytes() == stored(values, code).tobytes()


def test_decodes_every_float16() -> None:
    """All 63,488 finite patterns, subnormal ones too."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    finite = patterns[(patterns & 0x7C00) != 0x7C00]
    out = np.empty(4 * finite.size, np.uint8)
    assert kernel_of(Formula(Mixture(()), ()), ["F16"], "F32").merge(0, finite.view(np.uint8), [], out)
    assert out.tobytes() == finite.view(np.float16).astype(np.float32).tobytes()


@pytest.mark.parametrize("codes", [("F8_E4M3", "BF16", "BF16"), ("BF16", "F64", "BF16"), ("BF16", "BF16", "F8_E5M2")])
def test_other_dtypes_have_no_kernel(codes: tuple[str, str, str]) -> None:
    """Of base, expert or output."""
    base, expert, out = (dtype(code) for code in codes)
    assert kernel_for(Formula(Mixture((1.0,)), (None,)), base, [expert], out) is None


def test_other_coefficients_have_no_kernel() -> None:
    """Another package's, say."""
    assert kernel_for(object(), dtype("BF16"), [], dtype("BF16")) is None


# --- ranks --------------------------------------------------------------------------------------


@st.composite
def rows(draw: st.DrawFn) -> NDArray[np.float32]:
    """A row of many or few distinct magnitudes, at times longer than may be counted out."""
    count = draw(st.integers(1, 50) | st.sampled_from([1024, 1023, 3000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    few = rng.choice(np.array([0.0, -0.0, 1.0, -1.0, 1.0625, 2.0, 3e-39], np.float32), count)
    fine = (rng.standard_normal(count) * 10.0 ** rng.integers(-44, 37, count)).astype(np.float32)
    return np.where(rng.random(count) < draw(st.sampled_from([0.0, 0.5, 1.0])), few, fine)


@given(rows(), st.floats(0.05, 0.95), st.floats(0, 0.99), st.integers(0, 9))
@example(np.ones(4000, np.float32), 0.5, 0.9, 1)
@example(np.zeros(1024, np.float32), 0.5, 0.9, 1)
@example(np.linspace(1.0, 1.001, 4000, dtype=np.float32)[::-1].copy(), 0.5, 0.9, 1)
def test_ranks_are_those_of_a_sort(row: NDArray[np.float32], density: float, share: float, key: int) -> None:
    """Of what is not zero the same entries are kept, and a second row finds the memory as the first did."""
    epsilon = share * min(density, 1 - density)
    first, beyond, need = _needed_ranks(row.size, density, epsilon)
    uniform = uniform16(key, 0, row.size)
    kept = ranked_keep_mask(key, 0, np.abs(row), row.size, density, epsilon)
    room = ranking_room(row.size)
    for _ in range(2):
        values = row.copy()
        drop_by_rank(values, uniform, first, beyond, need, room)
        assert np.array_equal(values, np.where(kept, row, 0.0))


def test_addresses_are_of_the_first_element() -> None:
    """Of a part of an array too."""
    array = np.arange(10, dtype=np.uint16)
    assert _address(array[3:]) - _address(array) == 6
