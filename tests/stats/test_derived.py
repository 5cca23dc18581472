"""Facts of several deltas together that need an order: against the plain computation on whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepipe.core.leaves import LEAF
from mergepipe.operators.registry import operator
from mergepipe.stats.contract import GroupNeed, ImportanceNeed, OverlapNeed, VarianceMaskNeed
from mergepipe.stats.group import Demand, Geometry, GroupStatistic, GroupTile
from mergepipe.stats.importance import Importance, importance_demand
from mergepipe.stats.overlap import Overlap, overlap_demand
from mergepipe.stats.variance import VarianceMask, variance_demand
from mergepipe.testing.operators import Example, group_fact_of, spec_of

PLENTY, LITTLE = 1 << 30, 0


def made(need: GroupNeed, geometry: Geometry, memory: int) -> tuple[Demand, GroupStatistic]:
    """The statistic of a need and what it demands."""
    if isinstance(need, VarianceMaskNeed):
        return variance_demand(need, geometry, memory), VarianceMask(need, geometry, memory)
    if isinstance(need, ImportanceNeed):
        return importance_demand(need, geometry, memory), Importance(need, geometry, memory)
    assert isinstance(need, OverlapNeed)
    return overlap_demand(geometry), Overlap(need, geometry)


def streamed(need: GroupNeed, base: Any, deltas: list[Any], shape: tuple[int, ...], memory: int) -> Mapping[str, Any]:
    """The fact as the index computes it: tiles of whole units in order, looks as often as it is allowed to."""
    demand, statistic = made(need, Geometry(shape, len(deltas), base.dtype), memory)
    looks = 0

    def look() -> Iterator[GroupTile]:
        nonlocal looks
        looks += 1
        step = max(1, LEAF // demand.unit) * demand.unit
        for start in range(0, base.size, step):
            part = slice(start, start + step)
            yield GroupTile(start, base[part], [delta[part] for delta in deltas])

    for tile in look():
        statistic.feed(tile)
    fact = statistic.finish(look)
    assert looks <= demand.most
    return fact


def family(seed: int, shape: tuple[int, ...], terms: int, kind: Any) -> tuple[Any, list[Any]]:
    """A base and deltas with many equal magnitudes, zeros and ties."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    base = (rng.standard_normal(size) * 0.05).astype(kind)
    deltas = [(rng.integers(-20, 21, size) * 2.0**-12).astype(kind) for _ in range(terms)]
    for delta in deltas:
        delta[rng.random(size) < 0.3] = 0
    return base, deltas


def check(need: GroupNeed, method: str, shape: tuple[int, ...], base: Any, deltas: list[Any], nearly: float) -> None:
    """With much and with little memory the same bits, and the plain computation's numbers."""
    spec = spec_of(operator(method), Example({}, ({},) * len(deltas)), base.size, shape=shape)
    found = streamed(need, base, deltas, shape, PLENTY)
    assert streamed(need, base, deltas, shape, LITTLE) == found
    expected = group_fact_of(need, spec, base, deltas)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, int):
            assert found[key] == value, key
        else:
            mine, theirs = np.asarray(found[key], np.float64), np.asarray(value, np.float64)
            np.testing.assert_allclose(mine, theirs, rtol=nearly, atol=nearly * float(np.abs(theirs).max(initial=0.0)))


SHAPES = st.sampled_from([(1,), (7,), (5, 3), (64, 65), (3, 5000), (2, 40_000), (9, 70, 11)])
KINDS = st.sampled_from([np.float32, np.float64])


@settings(max_examples=40)
@given(st.integers(0, 10_000), SHAPES, st.integers(1, 4), KINDS, st.sampled_from([0.01, 0.3, 0.99, 1.0]))
def test_the_selection_of_largest_variance(
    seed: int, shape: tuple[int, ...], terms: int, kind: Any, topk: float
) -> None:
    """Threshold, cut and count exactly; energies to the last places of their sums."""
    check(VarianceMaskNeed(topk), "sce", shape, *family(seed, shape, terms, kind), 1e-12)


@settings(max_examples=30)
@given(st.integers(0, 10_000), SHAPES, st.integers(1, 4), KINDS, st.sampled_from([0.0, 1e-5, 2.0**-12, 0.003]))
def test_shared_and_unique_places(seed: int, shape: tuple[int, ...], terms: int, kind: Any, epsilon: float) -> None:
    """Counts are exact."""
    check(OverlapNeed(epsilon), "ramplus_tl", shape, *family(seed, shape, terms, kind), 0.0)


@settings(max_examples=30)
@given(st.integers(0, 10_000), SHAPES, KINDS)
def test_the_threshold_of_importance(seed: int, shape: tuple[int, ...], kind: Any) -> None:
    """Quantiles of |δ| times the divergence of rows, which is what is left of sums that nearly cancel."""
    check(ImportanceNeed(shape[-1]), "arcee_fusion", shape, *family(seed, shape, 1, kind), 1e-6)


@pytest.mark.parametrize("topk", [0.2, 1.0])
def test_continuous_variances_need_more_looks(topk: float) -> None:
    """Of float32 models every pattern is irregular: the same cut with room for all of them and for none."""
    rng = np.random.default_rng(5)
    shape = (3, 50_000)
    base, *deltas = (rng.standard_normal(150_000).astype(np.float32) for _ in range(4))
    check(VarianceMaskNeed(topk), "sce", shape, base, deltas, 1e-12)
