"""The compiled loops have the bits of the numpy ones, whose sums the tests of the accumulators write out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.dtypes import dtype
from mergepipe.core.leaves import LEAF
from mergepipe.stats.compiled import CompiledLoops
from mergepipe.stats.loops import LANES, PRODUCTS, TOP, LeafLook, Loops, NumpyLoops, Products, Tally, quickest_loops
from mergepipe.stats.sketch import SketchSigns

SIGNS = SketchSigns().pattern
LOOPS: tuple[Loops, Loops] = NumpyLoops(), CompiledLoops()


def tally(size: int, kind: Any) -> Tally:
    """Counters from 7 each."""
    return Tally(np.full(TOP, 7, np.uint32), np.empty(size + 1, kind))


def lanes() -> NDArray[np.float64]:
    """What the buffer held before must not show."""
    return np.full((PRODUCTS, LANES), np.nan)


def told(look: LeafLook, counts: Tally, sums: NDArray[np.float64]) -> tuple[object, ...]:
    """All that is told of a leaf, arrays as bytes; NaNs of δ itself are alike."""
    delta = np.where(np.isnan(look.delta), np.nan, look.delta)
    facts = look.irregular, look.largest, look.nonzero, look.nonfinite
    return (
        *facts,
        delta.tobytes(),
        counts.counts.tobytes(),
        counts.irregular[: look.irregular].tobytes(),
        sums.tobytes(),
    )


@st.composite
def leaves(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """A delta of any size up to a leaf, over all magnitudes, with zeros and at times what is not finite; a base."""
    count = draw(st.one_of(st.integers(1, 3 * LANES), st.sampled_from([LEAF, LEAF - 1])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    delta = (rng.standard_normal(count) * 10.0 ** rng.integers(-44, 38, count)).astype(kind)
    delta[rng.random(count) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = draw(st.sampled_from([0.0, -0.0]))
    odd = draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=3))
    delta[rng.integers(0, count, len(odd))] = odd
    return delta, rng.standard_normal(count).astype(np.float32).astype(np.float64)


@given(leaves())
def test_products_and_counts_have_the_same_bits(leaf: tuple[NDArray[Any], NDArray[np.float64]]) -> None:
    """Sums, maximum and counts of any leaf's δ, NaN's among them."""
    delta, base = leaf
    results = []
    for loops in LOOPS:
        counts, sums = tally(delta.size, f"u{delta.itemsize}"), lanes()
        irregular = loops.count(delta.view(f"u{delta.itemsize}"), counts)
        with np.errstate(all="ignore"):
            facts = loops.products(delta, Products(base, SIGNS, sums))
        results.append(told(LeafLook(delta, irregular, *facts), counts, sums))
    assert results[0] == results[1]


@given(leaves(), st.sampled_from(["BF16", "F16", "F32", "F64", "F8_E4M3"]), st.booleans(), st.booleans())
def test_leaves_have_the_same_bits(
    leaf: tuple[NDArray[Any], NDArray[np.float64]], code: str, counting: bool, summing: bool
) -> None:
    """δ and all facts of it, whatever the expert is stored as and whichever are asked for."""
    values, wide = leaf
    storage = dtype(code)
    with np.errstate(all="ignore"):
        raw = values.astype(np.float32).astype(storage.numpy).view(np.uint8)
        base = wide.astype(values.dtype)
        compute = np.result_type(base.dtype, storage.compute)
        results = []
        for loops in LOOPS:
            counts, sums = tally(values.size, f"u{compute.itemsize}"), lanes()
            products = Products(wide, SIGNS, sums) if summing else None
            look = loops.leaf(raw, storage, base, compute, counts if counting else None, products)
            results.append(told(look, counts, sums))
    assert results[0] == results[1]


@pytest.mark.parametrize("loops", LOOPS, ids=["numpy", "compiled"])
def test_counts_are_those_of_the_definition(loops: Loops) -> None:
    """The upper 16 bits are counted; patterns with lower ones are listed in order."""
    patterns = np.array([0, 0x3F80_0000, 0x3F80_0001, 0x7FFF_FFFF, 0x3F80_0000, 5, 0xBF80_0000], np.uint32)
    found = Tally(np.zeros(TOP, np.uint32), np.empty(8, np.uint32))
    assert loops.count(patterns, found) == 3
    assert found.irregular[:3].tolist() == [0x3F80_0001, 0x7FFF_FFFF, 5]
    places = np.flatnonzero(found.counts).tolist()
    assert {place: int(found.counts[place]) for place in places} == {0: 2, 0x3F80: 4, 0x7FFF: 1}


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 3, 40_000]))
def test_closing_is_the_same(seed: int, entries: int) -> None:
    """Totals are added to; the range that holds anything, entry 0 left out, and its largest count are told."""
    rng = np.random.default_rng(seed)
    counts = np.bincount(rng.integers(0, TOP, entries), minlength=TOP).astype(np.uint32)
    before = rng.integers(0, 2**40, TOP)
    totals = [before.copy(), before.copy()]
    told = [loops.close(counts, total) for loops, total in zip(LOOPS, totals, strict=True)]
    met = np.flatnonzero(counts[1:]) + 1
    expected = (int(met[0]), int(met[-1]) + 1, int(counts[1:].max())) if met.size else (1, 1, 0)
    assert told == [expected, expected]
    assert all((total == before + counts).all() for total in totals)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=50), st.integers(1, 60), st.sampled_from([np.uint32, np.uint64])
)
def test_finding_is_the_same(patterns: list[int], rank: int, kind: Any) -> None:
    """The place of the rank-th occurrence, or how many there are."""
    places = [n for n, pattern in enumerate(patterns) if pattern == 1]
    expected = (places[rank - 1], rank) if rank <= len(places) else (-1, len(places))
    assert [loops.find(np.array(patterns, kind), 1, rank) for loops in LOOPS] == [expected, expected]


def test_the_compiled_loops_are_taken() -> None:
    """Where numba is installed, as it is for development."""
    assert isinstance(quickest_loops(), CompiledLoops)
