from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.nuslerp import OPERATORS
from mergepipe.stats.contract import GramNeed, VectorGramNeed
from mergepipe.testing.operators import Example, OperatorContract, bits, resolve, spec_of
from tests.operators import reference_geometry as reference
from tests.operators.geometry_problems import assert_budgeted, assert_close, merge, shapes
from tests.operators.problems import NAMESPACES, Floats, Problem, problems

(NUSLERP,) = OPERATORS

ROWS = {"nuslerp_flatten": False}
COLUMNS = {"nuslerp_flatten": False, "nuslerp_row_wise": True}
PAIR = ({"weight": 0.4}, {"weight": 0.9})


class TestNuSlerp(OperatorContract):
    operator = NUSLERP
    namespaces = NAMESPACES
    recipes = (
        Example({}, PAIR),
        Example({}, ({"weight": 0.4},), {"weight": 0.7}),
        Example(ROWS, PAIR),
        Example(ROWS, ({"weight": 0.4},), {"weight": 0.7}),
        Example(COLUMNS, PAIR),
        Example(COLUMNS, ({"weight": -0.4},), {"weight": 0.7}),
    )


class TestNuSlerpOfThreeDimensions(TestNuSlerp):
    shape = (17, 1, 61)


@given(st.data(), problems(), st.booleans(), st.sampled_from([{}, ROWS, COLUMNS]), st.floats(0, 2), st.floats(-1, 2))
def test_is_the_formula(
    data: st.DataObject, problem: Problem, based: bool, merge_parameters: dict[str, bool], one: float, two: float
) -> None:
    """With and without a base, whole, by rows and by columns of any shape: the formula, and an error in bounds."""
    count = 2 if based else 1
    assume(len(problem.deltas) >= count)
    problem = Problem(problem.base, problem.deltas[:count], problem.cuts, problem.read[:count], problem.reads[:count])
    total = one + two
    assume(total == 0 or abs(total) > 1e-3)
    t = 0.5 if total == 0 else two / total
    shape = data.draw(shapes(problem.base.size))
    axis = 0 if merge_parameters.get("nuslerp_row_wise") else -1
    base, *deltas = (reference.exact(each).reshape(shape) for each in (problem.base, *problem.deltas))
    points = deltas if based else [base, base + deltas[0]]

    def whole(vectors: Sequence[Floats]) -> Floats:
        x, y = vectors
        norms = [reference.norm(x), reference.norm(y)]
        if all(norms):
            cosine = np.sum(x * y) / norms[0] / norms[1]
            assume(not -1 + 1e-15 < cosine < -1 + 1e-4)  # here the result depends on the inputs' last bits
        return reference.nuslerp(x, y, t)

    if merge_parameters:
        expected = reference.by_vector(whole, points, axis)
    else:
        expected = whole([point.reshape(-1) for point in points])
    if based:
        expected = reference.exact(problem.base) + expected
    weights = ({"weight": one}, {"weight": two})
    example = Example(merge_parameters, weights if based else weights[1:], None if based else weights[0])
    assert_close(NUSLERP, example, problem, shape, expected, 1e-11)
    assert_budgeted(NUSLERP, example, problem, shape)


def test_needs_by_shape() -> None:
    """By rows or columns it asks for inner products of each; a tensor of one dimension is one vector either way."""
    for merge_parameters, axis in ((ROWS, -1), (COLUMNS, 0)):
        example = Example(merge_parameters, PAIR)
        assert NUSLERP.group_needs(spec_of(NUSLERP, example, 12, shape=(3, 4))) == (VectorGramNeed(axis),)
        assert NUSLERP.group_needs(spec_of(NUSLERP, example, 12, shape=(12,))) == (GramNeed(),)
        assert NUSLERP.group_needs(spec_of(NUSLERP, example, 1, shape=())) == (GramNeed(),)
    assert NUSLERP.group_needs(spec_of(NUSLERP, Example({}, PAIR), 12, shape=(3, 4))) == (GramNeed(),)


def test_opposite_task_vectors_cancel_linearly() -> None:
    """Opposite task vectors, exactly or up to float32 rounding, are averaged: no rounding noise is enlarged."""
    generator = np.random.default_rng(0)
    base = generator.standard_normal(1_000).astype(np.float32)
    delta = (generator.standard_normal(1_000) * 0.01).astype(np.float32)
    stored = [(base + delta) - base, (base - delta) - base]  # as float32 checkpoints hold them
    example = Example({}, ({"weight": 1.0}, {"weight": 1.0}))
    for deltas in ([delta, -delta], stored):
        merged = merge(NUSLERP, example, base, deltas, ())
        assert np.abs(merged - base).max() <= 4e-7


def test_zero_task_vectors_give_the_base() -> None:
    """A tensor, or a row of it, that equals the base in both models stays the base's, bit for bit."""
    base = np.array([-0.0, 1.0, 2.0, 3.0], np.float32)
    zero = np.zeros(4, np.float32)
    assert np.array_equal(bits(merge(NUSLERP, Example({}, PAIR), base, [zero, zero], ())), bits(base))
    deltas = [np.array([0, 0, 0.5, 0], np.float32), np.array([0, 0, 0, 0.5], np.float32)]
    merged = merge(NUSLERP, Example(ROWS, PAIR), base, deltas, (2, 2))
    assert np.array_equal(bits(merged[:2]), bits(base[:2]))
    assert (merged[2:] != base[2:]).all()


def test_models_without_base_scale_the_first() -> None:
    """Between models of unlike direction the factor of the first is not 1, so nothing is copied; equal ones are."""
    example = Example({}, ({"weight": 0.5},), {"weight": 0.5})
    base, delta = np.array([1.0, 0.0]), np.array([-1.0, 1.0])
    spec = spec_of(NUSLERP, example, 2, wide=True)
    turned = resolve(NUSLERP, spec, [delta], base)
    assert not NUSLERP.copies_unread(turned)
    assert NUSLERP.base_gain(turned) == pytest.approx(2**0.5, rel=1e-15)
    assert NUSLERP.copies_unread(resolve(NUSLERP, spec, [delta * 0], base))


@pytest.mark.parametrize(("terms", "reference"), [(1, None), (3, None), (2, {"weight": 1.0}), (0, {"weight": 1.0})])
def test_wants_two_models(terms: int, reference: dict[str, float] | None) -> None:
    """Any other number than two models is refused, with the number found; the first model counts, a base does not."""
    spec = spec_of(NUSLERP, Example({}, ({"weight": 1.0},) * terms, reference), 4)
    with pytest.raises(RecipeError, match=rf"exactly two models.*found {terms + (reference is not None)}"):
        NUSLERP.group_needs(spec)
