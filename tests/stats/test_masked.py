from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.leaves import LEAF, leaf_spans
from mergepipe.core.random import keep_mask
from mergepipe.stats.contract import Fact, MaskedL1Need
from mergepipe.stats.masked import MaskedL1Sums

COUNT = 2 * LEAF + 1234
NEEDS = (MaskedL1Need(123, 0.3), MaskedL1Need(2**127 + 5, 0.9))
DELTA = np.abs(np.random.default_rng(1).standard_t(3, COUNT)).astype(np.float32)


def sums(runs: list[int]) -> list[Fact]:
    """The facts of DELTA, fed in runs that end at these positions."""
    found = MaskedL1Sums(NEEDS)
    for start, stop in zip([0, *runs], [*runs, COUNT], strict=True):
        found.feed(DELTA[start:stop])
    return found.facts()


def test_the_sums_are_those_of_the_mask() -> None:
    """l1 and masked_l1 are Σ|δ| and Σ|δ·m|, to the last few bits of float64."""
    for need, fact in zip(NEEDS, sums([]), strict=True):
        mask = keep_mask(need.key, 0, COUNT, need.density)
        assert fact["l1"] == pytest.approx(math.fsum(DELTA.tolist()), rel=1e-13)
        assert fact["masked_l1"] == pytest.approx(math.fsum(DELTA[mask].tolist()), rel=1e-13)


@given(st.lists(st.integers(0, COUNT), max_size=6))
def test_how_a_tensor_is_cut_does_not_show(cuts: list[int]) -> None:
    """Runs of any length give the same bits."""
    assert sums(sorted(cuts)) == sums([])


def test_what_is_not_finite_is_left_out() -> None:
    """NaN and infinity count as zero."""
    values = DELTA[:100].copy()
    odd, clean = MaskedL1Sums(NEEDS), MaskedL1Sums(NEEDS)
    values[[3, 50]] = 0
    clean.feed(values)
    values[[3, 50]] = np.nan, np.inf
    odd.feed(values)
    assert odd.facts() == clean.facts()


def test_nothing_fed_is_zero() -> None:
    """An expert tensor that covers nothing has no mass."""
    assert MaskedL1Sums(NEEDS).facts() == [{"l1": 0.0, "masked_l1": 0.0}] * 2


def test_leaves_are_counted_from_the_start_of_the_tensor() -> None:
    """The total is the sum of the leaves' sums, in their order."""
    total = 0.0
    for start, stop in leaf_spans(COUNT):
        leaf = MaskedL1Sums(NEEDS[:1])
        leaf.feed(DELTA[start:stop])
        total += float(leaf.facts()[0]["l1"])
    assert sums([])[0]["l1"] == total
