from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mergepipe.core.digest import bytes_digest
from mergepipe.core.leaves import LEAF, leaf_spans
from mergepipe.stats.accumulators import DeltaBatch
from mergepipe.stats.loops import NumpyLoops
from mergepipe.stats.sketch import SKETCH, Estimate, SketchSigns, estimate_dot


def put(batch: DeltaBatch, delta: NDArray[Any], base: NDArray[np.float64]) -> None:
    """One expert's leaf, as the index adds it."""
    batch.add(*NumpyLoops().products(delta, batch.products(base)))


def sketch(delta: NDArray[Any], signs: SketchSigns) -> NDArray[np.float64]:
    """The sketch of a block, leaf by leaf as the index makes it."""
    total = np.zeros(SKETCH)
    batch = DeltaBatch(1, signs)
    for leaf, (start, stop) in enumerate(leaf_spans(delta.size)):
        part = delta[start:stop].copy()
        put(batch, part, np.zeros(part.size))
        total += batch.finish(leaf).sketch[0]
    return total


def test_sketches_are_linear() -> None:
    """Of integers, which are summed exactly, sketch(aδ + bδ') = a·sketch(δ) + b·sketch(δ')."""
    draw = np.random.default_rng(1)
    left, right = draw.integers(-1000, 1000, (2, 150_000)).astype(np.float64)
    signs = SketchSigns()
    assert (sketch(3 * left - 7 * right, signs) == 3 * sketch(left, signs) - 7 * sketch(right, signs)).all()


def test_one_element_gives_one_bucket() -> None:
    """Element e of a block adds ± itself to bucket e mod 32, by the sign of its place and of (leaf, bucket)."""
    signs = SketchSigns()
    for element in (0, 31, 32, 1000, 65_535, 65_536, 70_001):
        delta = np.zeros(80_000)
        delta[element] = 2.5
        expected = np.zeros(SKETCH)
        leaf, place = divmod(element, LEAF)
        expected[element % SKETCH] = 2.5 * signs.pattern[place] * signs.leaf(leaf)[element % SKETCH]
        assert (sketch(delta, signs) == expected).all()


def test_inner_products_are_unbiased() -> None:
    """Over 400 seeds the mean of the estimates is the inner product, within four of its standard errors."""
    draw = np.random.default_rng(2)
    left = draw.standard_t(3, 3000)
    right = 0.5 * left + draw.standard_t(3, 3000)
    exact = float(left @ right)
    l2 = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    found = []
    for seed in range(400):
        signs = SketchSigns(seed)
        found.append(estimate_dot(sketch(left, signs), sketch(right, signs), *l2).value)
    spread = float(np.std(found))
    assert abs(float(np.mean(found)) - exact) < 4 * spread / math.sqrt(len(found))
    assert spread < 0.5 * l2[0] * l2[1]


def test_the_standard_error_is_that_of_the_estimates() -> None:
    """Over many seeds the estimates scatter as the standard error says, to a fifth."""
    draw = np.random.default_rng(3)
    left, right = draw.standard_normal((2, 20_000))
    l2 = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    found: list[Estimate] = []
    for seed in range(300):
        signs = SketchSigns(seed)
        found.append(estimate_dot(sketch(left, signs), sketch(right, signs), *l2))
    spread = float(np.std([each.value for each in found]))
    assert spread == pytest.approx(float(np.mean([each.standard_error for each in found])), rel=0.2)


def test_signs_do_not_change_between_versions() -> None:
    """Sketches in index files are made with these signs: their digest is part of the file format."""
    signs = SketchSigns()
    assert set(np.unique(signs.pattern)) == {-1.0, 1.0}
    leaves = np.stack([signs.leaf(number) for number in range(200)])
    assert (leaves[100] == SketchSigns().leaf(100)).all()
    packed = np.packbits(signs.pattern > 0).tobytes() + np.packbits(leaves > 0).tobytes()
    assert bytes_digest(packed)[:8].hex() == "20d2b3bcfca31a79"
