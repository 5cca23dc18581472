from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF
from mergepipe.stats.banded import BandL1Sums, ranks_of
from mergepipe.stats.contract import BandL1Need, Fact
from mergepipe.stats.magnitudes import MagnitudeCut

COUNT = 2 * LEAF + 1234
NEEDS = (BandL1Need(0, COUNT // 2), BandL1Need(500, 40_000), BandL1Need(1000, COUNT - 1000), BandL1Need(0, COUNT))
DRAW = np.random.default_rng(1)
# Many equal magnitudes, as bfloat16 deltas have them.
DELTA = np.round(np.abs(DRAW.standard_t(3, COUNT)) * 16).astype(np.float32) / 16


def cuts_of(delta: NDArray[Any], needs: tuple[BandL1Need, ...]) -> dict[int, MagnitudeCut]:
    """The cut of every rank, by a stable sort."""
    order = np.argsort(-delta, kind="stable")
    ranks = [rank for need in needs for rank in ranks_of(need, delta.size)]
    return {rank: MagnitudeCut(float(delta[order[rank - 1]]), int(order[rank - 1])) for rank in ranks}


CUTS = cuts_of(DELTA, NEEDS)


def sums(runs: list[int]) -> list[Fact]:
    """The facts of DELTA, fed in runs that end at these positions."""
    found = BandL1Sums(NEEDS, CUTS)
    for start, stop in zip([0, *runs], [*runs, COUNT], strict=True):
        found.feed(DELTA[start:stop])
    return found.facts()


def test_the_sums_are_those_of_the_band() -> None:
    """l1 is Σ|δ|, kept_l1 that of the `kept` largest after the `skipped` largest, equal ones by position."""
    order = np.argsort(-DELTA, kind="stable")
    for need, fact in zip(NEEDS, sums([]), strict=True):
        band = DELTA[order[need.skipped : need.skipped + need.kept]]
        assert fact["l1"] == pytest.approx(math.fsum(DELTA.tolist()), rel=1e-13)
        assert fact["kept_l1"] == pytest.approx(math.fsum(band.tolist()), rel=1e-13)


@given(st.lists(st.integers(0, COUNT), max_size=6))
def test_how_a_tensor_is_cut_does_not_show(cuts: list[int]) -> None:
    """Runs of any length give the same bits."""
    assert sums(sorted(cuts)) == sums([])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_small_bands(values: list[int], data: st.DataObject) -> None:
    """Every band of every small delta."""
    delta = np.array(values, np.float64)
    kept = data.draw(st.integers(1, delta.size))
    need = BandL1Need(data.draw(st.integers(0, delta.size - kept)), kept)
    found = BandL1Sums([need], cuts_of(delta, (need,)))
    found.feed(delta)
    band = sorted(values, reverse=True)[need.skipped : need.skipped + need.kept]
    assert found.facts() == [{"l1": float(sum(values)), "kept_l1": float(sum(band))}]


def test_a_band_over_everything_needs_no_cut() -> None:
    """Ranks at a delta's own ends are not asked for."""
    assert [ranks_of(need, COUNT) for need in NEEDS] == [(COUNT // 2,), (500, 40_500), (1000,), ()]


def test_what_is_not_finite_is_left_out() -> None:
    """NaN and infinity count as zero, also above a threshold that is the largest finite number."""
    need = BandL1Need(0, 2)
    found = BandL1Sums([need], {2: MagnitudeCut(float(np.finfo(np.float32).max), -1)})
    found.feed(np.array([np.nan, 1.0, np.inf, 2.0], np.float32))
    assert found.facts() == [{"l1": 3.0, "kept_l1": 0.0}]
