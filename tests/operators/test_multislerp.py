from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.multislerp import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits, resolve, spec_of
from tests.operators import reference_geometry as reference
from tests.operators.geometry_problems import assert_budgeted, assert_close, merge
from tests.operators.problems import NAMESPACES, WEIGHTS, Problem, problems

(MULTISLERP,) = OPERATORS

THREE = ({"weight": 1.0}, {"weight": 0.5}, {"weight": 2.0})


class TestMultiSlerp(OperatorContract):
    operator = MULTISLERP
    namespaces = NAMESPACES
    recipes = (
        Example({}, THREE),
        Example({}, THREE, {"weight": 0.4}),
        Example({"normalize_weights": False, "eps": 0.1}, ({"weight": 0.5}, {"weight": -0.25})),
        Example({"normalize_weights": False}, ({"weight": 0.5},), {"weight": 0.25}),
        Example({}, ({"weight": 0.5},)),
    )


@given(problems(), st.booleans(), st.none() | st.floats(-2, 2), WEIGHTS, st.sampled_from([1e-8, 0.0, 0.01]))
def test_is_the_formula(problem: Problem, normalize: bool, own: float | None, weights: list[float], eps: float) -> None:
    """Any weights, with and without a base: what the steps through tangent space give, and an error in bounds."""
    terms = [{"weight": weight} for weight in weights[: len(problem.deltas)]]
    example = Example(
        {"normalize_weights": normalize, "eps": eps}, tuple(terms), None if own is None else {"weight": own}
    )
    given_weights = [*([] if own is None else [own]), *(term["weight"] for term in terms)]
    total = math.fsum(given_weights)
    assume(not normalize or len(given_weights) == 1 or abs(total) > 1e-3)
    if normalize and len(given_weights) > 1:
        given_weights = [weight / total for weight in given_weights]
    base, deltas = reference.exact(problem.base), [reference.exact(delta) for delta in problem.deltas]
    points = deltas if own is None else [base, *(base + delta for delta in deltas)]
    # Beside models of usual size, the factor of one as small as float32's smallest numbers is beyond float32.
    assume(all(not 0 < reference.norm(point) < 1e-30 for point in points))
    units = [point / (reference.norm(point) or 1) for point in points]
    mean = reference.norm(np.sum([weight * unit for weight, unit in zip(given_weights, units, strict=True)], axis=0))
    # Nearly cancelled directions depend on the inputs' last bits.
    assume(mean < 1e-13 or mean > 1e-2)
    expected = reference.multislerp(points, given_weights, eps)
    if own is None:
        expected = base + expected
    assert_close(MULTISLERP, example, problem, (), expected, 1e-11)
    assert_budgeted(MULTISLERP, example, problem, ())


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_experts_equal_to_the_base_give_it(terms: int) -> None:
    """A tensor that no expert changed is the base's, bit for bit (mergekit stops there with three experts)."""
    base = np.array([1.0, -0.0, 2.5], np.float32)
    merged = merge(MULTISLERP, Example({}, THREE[:terms]), base, [np.zeros(3, np.float32)] * terms, ())
    assert np.array_equal(bits(merged), bits(base))


def test_cancelling_directions_are_averaged() -> None:
    """Directions whose mean is nothing are averaged linearly, for two experts and for more."""
    base = np.zeros(2)
    turns = [np.array([math.cos(angle), math.sin(angle)]) for angle in (0.0, 2 * math.pi / 3, 4 * math.pi / 3)]
    lengths = [1.0, 2.0, 3.0]
    deltas = [turn * length for turn, length in zip(turns, lengths, strict=True)]
    merged = merge(MULTISLERP, Example({}, ({"weight": 1.0},) * 3), base, deltas, ())
    assert np.allclose(merged, sum(deltas) / 3, rtol=0, atol=1e-15)
    pair = [turns[0], -3 * turns[0]]
    merged = merge(MULTISLERP, Example({}, ({"weight": 1.0},) * 2), base, pair, ())
    assert np.allclose(merged, sum(pair) / 2, rtol=0, atol=1e-15)


def test_one_model_is_itself() -> None:
    """One expert, whatever its weight, is the result."""
    base, delta = np.array([1.0, 2.0, 4.0]), np.array([0.5, 0.0, -1.0])
    merged = merge(MULTISLERP, Example({}, ({"weight": 0.0},)), base, [delta], ())
    assert np.array_equal(merged, base + delta)


def test_equal_models_without_base_are_kept() -> None:
    """Models that are all the same give that model to rounding, whatever their weights."""
    base = np.random.default_rng(0).standard_normal(50)
    zero = np.zeros(50)
    merged = merge(MULTISLERP, Example({}, THREE, {"weight": -0.7}), base, [zero] * 3, ())
    assert np.allclose(merged, base, rtol=1e-14, atol=0)


def test_weights_that_cancel_are_refused() -> None:
    """Weights that add up to nothing cannot be normalised: said before facts are read for, with the way out."""
    spec = spec_of(MULTISLERP, Example({}, ({"weight": 0.5}, {"weight": -0.5})), 4)
    with pytest.raises(RecipeError, match=r"layer\.weight.*0\.5, -0\.5 add up to 0.*normalize_weights: false"):
        MULTISLERP.group_needs(spec)
    free = spec_of(MULTISLERP, Example({"normalize_weights": False}, ({"weight": 0.5}, {"weight": -0.5})), 4)
    assert MULTISLERP.copies_unread(resolve(MULTISLERP, free, [np.ones(4), np.ones(4)]))
