from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF
from mergepipe.stats.loops import NumpyLoops, quickest_loops
from mergepipe.stats.magnitudes import LEAST_WORKING, MagnitudeCut, Magnitudes, kept_count

GRID = [number / 100 for number in range(1, 100)]
PLENTY = 1 << 26


def bf16_delta(count: int, seed: int) -> NDArray[np.float32]:
    """|θ − θ₀| of two bf16 tensors: many ties, few patterns with lower bits."""
    draw = np.random.default_rng(seed)
    base = (0.02 * draw.standard_normal(count)).astype(np.float32)
    tuned = base + (1e-3 * draw.standard_t(3, count)).astype(np.float32)
    left, right = (each.astype(ml_dtypes.bfloat16).astype(np.float32) for each in (base, tuned))
    sizes: NDArray[np.float32] = np.abs(right - left)
    return sizes


def naive(sizes: FloatArray, total: int, ranks: Sequence[int]) -> list[tuple[float, int]]:
    """A stable sort by (−|δ|, position); NaN first, then infinity."""
    full = np.concatenate([sizes, np.zeros(total - sizes.size, sizes.dtype)])
    order = sorted(range(total), key=lambda n: (not np.isnan(full[n]), -full[n] if full[n] == full[n] else 0.0, n))
    found = []
    for rank in ranks:
        threshold = float(full[order[rank - 1]])
        finite = np.isfinite(threshold)
        found.append((threshold, order[rank - 1]) if finite else (float(np.finfo(sizes.dtype).max), -1))
    return found


class Stream:
    """|δ| in tiles of a given size, counting what is looked at again."""

    def __init__(self, sizes: FloatArray, tile: int) -> None:
        self.sizes, self.tile, self.seen = sizes, tile, 0

    def __call__(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, FloatArray]]:
        for start, stop in spans:
            for at in range(start, stop, self.tile):
                part = self.sizes[at : min(at + self.tile, stop)].copy()
                self.seen += part.size
                yield at, part

    def cuts(self, total: int, ranks: Sequence[int], room: int, working: int) -> list[tuple[float, int]]:
        """Feed all, then finish."""
        found = Magnitudes(self.sizes.size, total, self.sizes.dtype, room, working, quickest_loops())
        for start, part in self([(0, self.sizes.size)]):
            found.feed(start, part)
        self.seen = 0
        return [(cut.threshold, cut.cut) for cut in found.finish(self, ranks)]


def ranks_of(total: int) -> list[int]:
    """The ranks of the index's grid."""
    return [kept_count(density, total) for density in GRID]


@pytest.mark.parametrize(
    ("density", "total", "kept"),
    [(0.29, 100, 28), (0.57, 100, 56), (0.5, 1, 1), (0.001, 10, 1), (0.0, 10, 1), (1.0, 10, 10), (2.0, 10, 10)],
)
def test_how_many_are_kept(density: float, total: int, kept: int) -> None:
    """max(1, int(density · n)) in double precision (0.29 · 100 is below 29), at most all."""
    assert kept_count(density, total) == kept


@settings(max_examples=60)
@given(
    values=st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 3e-40, 1e-3, 7.25, 1e30, np.inf, np.nan]), max_size=60),
    beyond=st.integers(0, 20),
    tile=st.integers(1, 70),
    wide=st.booleans(),
)
def test_a_few_elements(values: list[float], beyond: int, tile: int, wide: bool) -> None:
    """Small deltas, with ties, zeros never fed and non-finite values, agree with the stable sort at every rank."""
    sizes: FloatArray = np.array(values, np.float64) if wide else np.array(values, np.float32)
    total = sizes.size + beyond
    ranks = range(1, total + 1)
    assert Stream(sizes, tile).cuts(total, ranks, PLENTY, PLENTY) == naive(sizes, total, ranks)


def shapes() -> dict[str, FloatArray]:
    """Deltas of about 9,000 elements of different natures."""
    draw = np.random.default_rng(5)
    heavy = np.abs(draw.standard_t(3, 9001)).astype(np.float32)
    odd = bf16_delta(9000, 2)
    odd[::7], odd[1::9] = np.nan, np.inf
    mostly_zero = bf16_delta(9000, 3)
    mostly_zero[draw.random(9000) < 0.6] = 0
    wide = np.abs(draw.standard_t(3, 9001))
    wide[::3] = wide[0]
    subnormal = (np.arange(9000) % 300 * 1.4e-45).astype(np.float32)
    return {
        "bf16": bf16_delta(9000, 1), "float32": heavy, "float64": wide, "not finite": odd, "zeros": mostly_zero,
        "equal": np.full(5000, 0.125, np.float32), "subnormal": subnormal,
    }  # fmt: skip


@pytest.mark.parametrize("name", shapes())
@pytest.mark.parametrize("beyond", [0, 6000])
@pytest.mark.parametrize(("room", "working"), [(0, LEAST_WORKING), (20_000, 1 << 22), (PLENTY, PLENTY)])
@pytest.mark.parametrize("tile", [700, LEAF])
def test_counting_agrees_with_sorting(name: str, beyond: int, room: int, working: int, tile: int) -> None:
    """The whole grid at once, whatever the memory and the tiles."""
    sizes = shapes()[name]
    total = sizes.size + beyond
    assert Stream(sizes, tile).cuts(total, ranks_of(total), room, working) == naive(sizes, total, ranks_of(total))


def test_several_records() -> None:
    """Deltas of several leaves: the same cuts with one look, with many, and by sorting bits."""
    sizes = bf16_delta(3 * LEAF + 777, 4)
    order = np.argsort(~sizes.view(np.uint32), kind="stable")
    ranks = ranks_of(sizes.size)
    expected = [(float(sizes[order[rank - 1]]), int(order[rank - 1])) for rank in ranks]
    for room, working in ((0, LEAST_WORKING), (PLENTY, PLENTY)):
        for tile in (10_000, LEAF, 200_000):
            assert Stream(sizes, tile).cuts(sizes.size, ranks, room, working) == expected


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_more_ranks_than_are_counted_at_once(kind: type[Any]) -> None:
    """A thousand ranks of a continuous delta in the least memory."""
    sizes = np.abs(np.random.default_rng(8).standard_normal(6000)).astype(kind)
    ranks = range(3, 6000, 6)
    assert Stream(sizes, LEAF).cuts(6000, ranks, 0, LEAST_WORKING) == naive(sizes, 6000, ranks)


def test_exactly_k_are_kept() -> None:
    """Keeping by threshold and cut keeps max(1, int(density · n)) elements."""
    sizes = bf16_delta(20_000, 6)
    for density, (threshold, cut) in zip(
        GRID, Stream(sizes, LEAF).cuts(sizes.size, ranks_of(sizes.size), PLENTY, PLENTY), strict=True
    ):
        ties = np.flatnonzero(sizes == threshold)
        assert np.count_nonzero(sizes > threshold) + np.count_nonzero(ties <= cut) == kept_count(density, sizes.size)
        assert cut in ties


def test_one_look_suffices_for_bf16() -> None:
    """With room only records that hold a cut are looked at again, not all."""
    sizes = bf16_delta(8 * LEAF, 7)
    stream = Stream(sizes, LEAF)
    stream.cuts(sizes.size, [kept_count(0.1, sizes.size)], PLENTY, PLENTY)
    assert stream.seen == LEAF


def test_a_cut_as_a_fact() -> None:
    """As operators take it."""
    assert MagnitudeCut(0.5, 7).fact == {"threshold": 0.5, "cut": 7}


def test_no_element_was_fed() -> None:
    """A delta that is zero by nature keeps its first k elements."""
    nothing = Magnitudes(0, 10, np.dtype(np.float32), 0, LEAST_WORKING, NumpyLoops())
    found: Any = nothing.finish(lambda spans: iter(()), [1, 4])
    assert [(cut.threshold, cut.cut) for cut in found] == [(0.0, 0), (0.0, 3)]
