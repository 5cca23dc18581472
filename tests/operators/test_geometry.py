from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.arrays import Scratch
from mergepipe.errors import FormatError, RecipeError
from mergepipe.operators.contract import Tile
from mergepipe.operators.geometry import Column, VectorCombination, arc, gram_of, models, vector_combination
from mergepipe.operators.karcher import OPERATORS as KARCHER
from mergepipe.operators.model_stock import OPERATORS as MODEL_STOCK
from mergepipe.operators.multislerp import OPERATORS as MULTISLERP
from mergepipe.operators.nuslerp import OPERATORS as NUSLERP
from mergepipe.operators.slerp import OPERATORS as SLERP
from mergepipe.stats.contract import VectorGramNeed
from mergepipe.testing.operators import Example, group_fact_of, spec_of
from tests.operators.geometry_problems import merge
from tests.operators.problems import Floats

SPEC = spec_of(KARCHER[0], Example({}, ({},), {}), 12, shape=(3, 4))


@given(st.floats(-9, 0), st.just(1.0) | st.floats(0.3, 3) | st.floats(-3, -0.3), st.integers(0, 2**32 - 1))
def test_angles_of_nearly_parallel_models(power: float, factor: float, seed: int) -> None:
    """Between nearly equal models the angle is right to nine digits of itself; else its sine's square to 1e-14."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(60)
    x /= np.linalg.norm(x)
    across = generator.standard_normal(60)
    across -= x * (x @ across)
    across /= np.linalg.norm(across)
    y = factor * (x + 10.0**power * across)
    found = arc(_gram(x, y - x), *models(1))
    wide_x, wide_y = x.astype(np.longdouble), x.astype(np.longdouble) + (y - x).astype(np.longdouble)
    along = np.sum(wide_x * wide_y) / np.sum(wide_x * wide_x)
    sine = np.sqrt(np.sum((wide_y - along * wide_x) ** 2)) / np.sqrt(np.sum(wide_y**2))
    if factor == 1.0:
        assert abs(found.sine[0] - sine) <= 1e-9 * sine
    assert abs(found.sine[0] ** 2 - sine**2) <= 1e-14
    assert math.copysign(1.0, found.cosine[0]) == math.copysign(1.0, factor)
    assert abs(found.sine[0] ** 2 + found.cosine[0] ** 2 - 1.0) <= 1e-14


def test_a_zero_vector_is_at_a_right_angle() -> None:
    """A zero model has the cosine 0 with every other, as mergekit's unit vector of it has."""
    found = arc(_gram(np.ones(3), -np.ones(3)), *models(1))
    assert (found.cosine[0], found.sine[0], found.lengths[1][0]) == (0.0, 1.0, 0.0)


def test_facts_of_another_tensor_are_refused() -> None:
    """A fact that does not fit the tensor says that the plan is damaged, with both numbers."""
    with pytest.raises(FormatError, match="8 inner products, 12 expected"):
        gram_of(SPEC, {"gram": [1.0] * 8}, -1)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_infinite_inner_products_are_refused(bad: float) -> None:
    """Non-finite inputs have no angles: the error names the tensor."""
    with pytest.raises(RecipeError, match=r"layer\.weight: inner products of the inputs are not finite"):
        gram_of(SPEC, {"gram": [1.0, bad, bad, 1.0]})


@pytest.mark.parametrize("axis", [-1, 0])
def test_every_vector_gets_its_own_number(axis: int) -> None:
    """Element (r, c) is scaled by its row's or its column's numbers, wherever the tile starts and ends."""
    count = 3 if axis == -1 else 4
    spec = spec_of(KARCHER[0], Example({}, ({},), {}), 12, shape=(3, 4))
    factors, scales = np.arange(1.0, count + 1), np.arange(10.0, count + 10)
    numbers = vector_combination(spec, axis, scales, [factors])
    assert isinstance(numbers, VectorCombination)
    assert numbers == pickle.loads(pickle.dumps(numbers))
    assert (numbers.gains, numbers.base_gain) == ((float(count),), float(count + 9))
    base, delta = np.arange(12, dtype=np.float32), np.arange(100, 112, dtype=np.float32)
    place = np.arange(12) // 4 if axis == -1 else np.arange(12) % 4
    expected = scales[place] * base + factors[place] * delta
    for start in range(12):
        for stop in range(start + 1, 13):
            part = slice(start, stop)
            out = np.empty(stop - start, np.float32)

            def write(into: Floats, part: slice = part) -> None:
                into[...] = delta[part]

            scratch = Scratch(12, np.dtype(np.float32))
            numbers.write(Tile(start, stop - start, base[part], [write], scratch), out)
            assert np.array_equal(out, expected[part])


def test_numbers_beyond_float32_are_refused() -> None:
    """A coefficient of a row that float32 cannot hold is refused, not turned into infinity."""
    with pytest.raises(RecipeError, match="largest coefficient of a row or column is 1e\\+39, beyond"):
        vector_combination(SPEC, -1, np.ones(3), [np.array([0.0, -1e39, 0.0])])


@pytest.mark.parametrize("axis", [-1, 0])
def test_plain_facts_by_vector(axis: int) -> None:
    """The contract tests' own inner products are those of rows or columns, one matrix after another."""
    generator = np.random.default_rng(0)
    base, delta = generator.standard_normal((2, 3, 4))
    fact = group_fact_of(VectorGramNeed(axis), SPEC, base.ravel(), [delta.ravel()])
    gram = gram_of(SPEC, fact, axis)
    assert np.allclose(gram[0][1], np.sum(base * delta, axis=axis))
    assert np.allclose(gram[1][1], np.sum(delta * delta, axis=axis))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0,), (0, 4), (4, 0), (3, 1), (1, 3)])
@pytest.mark.parametrize("example", range(7))
def test_smallest_tensors(example: int, shape: tuple[int, ...]) -> None:
    """Scalars, empty tensors and matrices of one row or column merge to finite values; equal models to themselves."""
    two = ({"weight": 0.3}, {"weight": 0.5})
    operator, case = [
        (SLERP[0], Example({"t": 0.3}, ({},))),
        (NUSLERP[0], Example({}, two)),
        (NUSLERP[0], Example({"nuslerp_flatten": False}, two)),
        (NUSLERP[0], Example({"nuslerp_flatten": False, "nuslerp_row_wise": True}, two[1:], two[0])),
        (MULTISLERP[0], Example({}, two)),
        (KARCHER[0], Example({}, ({}, {}))),
        (MODEL_STOCK[0], Example({"filter_wise": True}, ({}, {}))),
    ][example]
    elements = math.prod(shape)
    base = np.linspace(1.0, 2.0, elements)
    for delta in (np.zeros(elements), np.linspace(-1.0, 3.0, elements)):
        deltas: list[Floats] = [delta * (n + 1) for n in range(len(case.terms))]
        merged = merge(operator, case, base, deltas, shape)
        assert merged.shape == base.shape
        assert np.isfinite(merged).all()
        if not delta.any():
            assert np.allclose(merged, base, rtol=1e-15, atol=0)


def _gram(base: Floats, delta: Floats) -> list[list[Column]]:
    rows = (base, delta)
    return [[np.array([math.fsum(left * right)]) for right in rows] for left in rows]
