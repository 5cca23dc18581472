from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF
from mergepipe.stats.accumulators import BaseLeaves, DeltaBatch, LeafAdder, halve
from mergepipe.stats.loops import LANES, NumpyLoops, add_rows
from mergepipe.stats.sketch import SKETCH, SketchSigns

SIZES = (1, 5, 31, 32, 1023, 1024, 1025, 40_000, LEAF - 1, LEAF)


def wild(count: int, seed: int, kind: type[Any] = np.float64) -> NDArray[Any]:
    """Numbers of many magnitudes and both signs: the order of their addition shows in the sum."""
    draw = np.random.default_rng(seed)
    return np.asarray(draw.standard_normal(count) * np.exp(3 * draw.standard_normal(count)), kind)


def tree(numbers: Sequence[float], left: int = 1) -> list[float]:
    """The sums of one leaf as documented, one Python float after another."""
    padded = list(numbers) + [0.0] * (-len(numbers) % LANES)
    lanes = padded[:LANES]
    for row in range(LANES, len(padded), LANES):
        lanes = [a + b for a, b in zip(lanes, padded[row : row + LANES], strict=True)]
    while len(lanes) > left:
        half = len(lanes) // 2
        lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes


@pytest.mark.parametrize("shape", [(1, LANES), (64, LANES), (4, 64, LANES), (4, 17, LANES), (3, 1, LANES)])
def test_rows_are_added_one_after_another(shape: tuple[int, ...]) -> None:
    """The one numpy reduction used gives the bits of a loop that adds whole rows in turn."""
    rows = wild(math.prod(shape), 1).reshape(shape)
    expected = rows[..., 0, :].copy()
    for row in range(1, shape[-2]):
        expected += rows[..., row, :]
    # As the batch has it: fewer rows of a larger array.
    larger = np.full((*shape[:-2], 64, LANES), 7.0)
    larger[..., : shape[-2], :] = rows
    for given in (rows, larger[..., : shape[-2], :]):
        out = np.empty(expected.shape)
        add_rows(given, out)
        assert out.tobytes() == expected.tobytes()


def test_halving_adds_the_upper_half() -> None:
    """Lanes are added to those half the width below them, until as many as asked for remain."""
    lanes = np.array([[1.0, 10.0, 100.0, 1000.0]])
    assert halve(lanes.copy(), 2).tolist() == [[101.0, 1010.0]]
    assert halve(lanes.copy(), 1).tolist() == [[1111.0]]
    assert halve(lanes.copy(), 4).tolist() == lanes.tolist()


def put(batch: DeltaBatch, delta: NDArray[Any], base: NDArray[np.float64]) -> None:
    """One expert's leaf, as the index adds it."""
    batch.add(*NumpyLoops().products(delta, batch.products(base)))


@pytest.mark.parametrize("count", SIZES)
def test_sums_are_those_of_the_documented_tree(count: int) -> None:
    """Every sum of a leaf has the bits of the tree written out, whatever was summed before."""
    adder = LeafAdder(2)
    for size in (LEAF, count):
        numbers = wild(size, 2), wild(size, 3)
        for row, values in enumerate(numbers):
            adder.row(row, size)[:] = values
        assert adder.sums(size).tolist() == [tree(values.tolist())[0] for values in numbers]


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_facts_of_a_delta(count: int, kind: type[Any]) -> None:
    """‖δ‖², |δ| and θ₀δ are summed by the tree; maxima and counts are exact; sketches are sums over buckets."""
    signs = SketchSigns()
    batch = DeltaBatch(3, signs)
    base = wild(count, 4, kind).astype(np.float64)
    deltas = [wild(count, 5 + number, kind) for number in range(3)]
    deltas[1][::3] = 0
    leaf = 2
    # A larger leaf before must leave nothing behind.
    put(batch, wild(LEAF, 9, kind), wild(LEAF, 9))
    batch.finish(0)
    for delta in deltas:
        assert not batch.full
        put(batch, delta, base)
    assert batch.full
    found = batch.finish(leaf)
    for place, delta in enumerate(deltas):
        wide = delta.astype(np.float64)
        products = wide * wide, np.abs(wide), base * wide
        assert found.sums[place].tolist() == [tree(each.tolist())[0] for each in products]
        for each, total in zip(products, found.sums[place], strict=True):
            assert total == pytest.approx(math.fsum(each), rel=1e-12, abs=1e-12 * math.fsum(np.abs(each)))
        assert found.largest[place] == np.abs(wide).max()
        assert found.counts[place].tolist() == [np.count_nonzero(delta), 0]
        signed = wide * signs.pattern[:count]
        buckets = np.array(tree(signed.tolist(), SKETCH)) * signs.leaf(leaf)
        assert found.sketch[place].tolist() == buckets.tolist()


def test_experts_of_a_batch_do_not_show_in_each_other() -> None:
    """An expert's facts are the same alone and beside others, whatever they hold."""
    signs = SketchSigns()
    base, delta = wild(5000, 1), wild(5000, 2, np.float32)
    alone, beside = DeltaBatch(1, signs), DeltaBatch(2, signs)
    put(alone, delta, base)
    put(beside, np.full(5000, np.nan, np.float32), base)
    put(beside, delta, base)
    one, two = alone.finish(3), beside.finish(3)
    for field in ("sums", "largest", "counts", "sketch"):
        assert getattr(one, field)[0].tobytes() == getattr(two, field)[1].tobytes()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_and_left_out(odd: float) -> None:
    """A non-finite delta counts once and as nonzero; sums, maximum and sketch are as if it were zero."""
    signs = SketchSigns()
    delta, base = wild(3000, 1, np.float32), wild(3000, 2)
    cleaned = delta.copy()
    cleaned[[7, 2999]] = 0
    delta[[7, 2999]] = odd
    batch = DeltaBatch(2, signs)
    put(batch, delta, base)
    put(batch, cleaned, base)
    found = batch.finish(0)
    assert found.counts.tolist() == [[3000, 2], [2998, 0]]
    for field in ("sums", "largest", "sketch"):
        assert getattr(found, field)[0].tobytes() == getattr(found, field)[1].tobytes()


def test_the_facts_of_the_base() -> None:
    """Σθ₀², max|θ₀| and the non-finite count; the values handed on hold zeros where the base is not finite."""
    leaves = BaseLeaves()
    leaves.add(wild(LEAF, 1))
    values = wild(2000, 2, np.float32)
    clean = values.copy()
    clean[[0, 1, 1999]] = 0
    values[[0, 1, 1999]] = np.nan, np.inf, -np.inf
    found = leaves.add(values)
    wide = clean.astype(np.float64)
    assert found.square == tree((wide * wide).tolist())[0]
    assert found.largest == np.abs(wide).max()
    assert found.nonfinite == 3
    assert found.values.tobytes() == wide.tobytes()
    whole = leaves.add(clean)
    assert (whole.square, whole.largest, whole.nonfinite) == (found.square, found.largest, 0)


def test_a_leaf_without_a_finite_value() -> None:
    """Where nothing is finite sums and maximum are zero."""
    found = BaseLeaves().add(np.full(10, np.nan))
    assert (found.square, found.largest, found.nonfinite) == (0.0, 0.0, 10)
