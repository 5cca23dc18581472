from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.random import ranked_keep_mask
from mergepipe.stats.contract import Fact, RankedMaskL1Need
from mergepipe.stats.ranked import RankedMaskL1Sums

COUNT = 120 * 1200
DELTA = np.abs(np.random.default_rng(1).standard_t(3, COUNT)).astype(np.float32)
# Rows that divide a leaf, that do not, that are longer, and one row only.
ROWS = (16, 1200, 72_000, COUNT)


def need_of(row: int) -> RankedMaskL1Need:
    """A need with a key of its own."""
    return RankedMaskL1Need(2**127 + row, 0.4, 0.15, row)


def sums(need: RankedMaskL1Need, delta: NDArray[Any], runs: list[int]) -> Fact:
    """The fact of a delta fed in runs that end at these positions."""
    found = RankedMaskL1Sums(need, delta.dtype)
    for start, stop in zip([0, *runs], [*runs, delta.size], strict=True):
        found.feed(delta[start:stop])
    return found.fact()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_sums_are_those_of_the_mask(row: int, kind: type[Any]) -> None:
    """l1 and masked_l1 are Σ|δ| and Σ|δ·m| of the mask that execution applies, to the last few bits of float64."""
    need, delta = need_of(row), DELTA.astype(kind)
    mask = ranked_keep_mask(need.key, 0, delta, row, need.density, need.epsilon)
    fact = sums(need, delta, [])
    assert fact["l1"] == pytest.approx(math.fsum(delta.tolist()), rel=1e-13)
    assert fact["masked_l1"] == pytest.approx(math.fsum(delta[mask].tolist()), rel=1e-13)


@pytest.mark.parametrize("row", ROWS)
@given(st.lists(st.integers(0, COUNT), max_size=6))
def test_how_a_tensor_is_cut_does_not_show(row: int, cuts: list[int]) -> None:
    """Runs of any length, ending within rows and leaves, give the same bits."""
    assert sums(need_of(row), DELTA, sorted(cuts)) == sums(need_of(row), DELTA, [])


@pytest.mark.parametrize("row", ROWS)
def test_what_is_not_fed_is_zero(row: int) -> None:
    """An expert that covers the first rows, or the beginning of a row, only: the rest ranks as zeros."""
    for covered in (0, 100, 1200 * 50, COUNT - 1):
        whole = DELTA.copy()
        whole[covered:] = 0.0
        assert sums(need_of(row), DELTA[:covered], []) == sums(need_of(row), whole, [])


def test_what_is_not_finite_is_left_out() -> None:
    """NaN and infinity rank highest, as they do in execution, and add nothing."""
    need = need_of(16)
    delta = DELTA[:1600].copy()
    delta[[3, 50]] = np.nan, np.inf
    mask = ranked_keep_mask(need.key, 0, delta, 16, need.density, need.epsilon)
    finite = np.isfinite(delta)
    fact = sums(need, delta, [])
    assert fact["l1"] == pytest.approx(math.fsum(delta[finite].tolist()), rel=1e-13)
    assert fact["masked_l1"] == pytest.approx(math.fsum(delta[finite & mask].tolist()), rel=1e-13)
