from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.operators.karcher import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits
from tests.operators import reference_geometry as reference
from tests.operators.geometry_problems import assert_budgeted, assert_close, merge
from tests.operators.problems import NAMESPACES, Problem, problems

(KARCHER,) = OPERATORS


class TestKarcher(OperatorContract):
    operator = KARCHER
    namespaces = NAMESPACES
    recipes = (
        Example({}, ({}, {}, {}), {}),
        Example({"max_iter": 3, "tol": 1e-9}, ({}, {})),
        Example({"max_iter": 0}, ({},), {}),
    )


@given(problems(), st.booleans(), st.sampled_from([0, 1, 10, 50]), st.sampled_from([1e-5, 1e-9]))
def test_is_the_formula(problem: Problem, based: bool, max_iter: int, tol: float) -> None:
    """Any models: the mean that whole vectors give, step by step, and an error within the bound."""
    base = reference.exact(problem.base)
    models = [base + reference.exact(delta) for delta in problem.deltas]
    points = [*models, base] if based else [base, *models]
    norms = [reference.norm(point) for point in points]
    assume(all(abs(norm - tol) > 1e-3 * tol for norm in norms))
    units = [point / norm for point, norm in zip(points, norms, strict=True) if norm > tol]
    if units:
        # Nearly cancelled or nearly opposite directions depend on the inputs' last bits.
        mean = reference.norm(sum(units[1:], units[0])) / len(units)
        assume(mean < 1e-13 or mean > 1e-2)
        reached = reference.karcher(units, max_iter, tol)
        assume(all(reference.norm(unit + reached) > 1e-2 or reference.norm(unit + reached) < 1e-13 for unit in units))
    example = Example({"max_iter": max_iter, "tol": tol}, ({},) * len(models), None if based else {})
    assert_close(KARCHER, example, problem, (), reference.karcher(points, max_iter, tol), 1e-9)
    assert_budgeted(KARCHER, example, problem, ())


def test_nearly_equal_models_lose_no_digits() -> None:
    """With updates a millionth of the weights, the update is right to eight digits, not only the weights."""
    generator = np.random.default_rng(0)
    base = generator.standard_normal(500)
    deltas = [generator.standard_normal(500) * 1e-6 for _ in range(3)]
    merged = merge(KARCHER, Example({"tol": 1e-12}, ({},) * 3, {}), base, deltas, ())
    points = [reference.exact(base) + reference.exact(delta) for delta in (0 * base, *deltas)]
    expected = reference.karcher(points, 10, 1e-12) - points[0]
    # The weights themselves are float64: this is all that is left of the update.
    assert np.abs(merged - points[0] - expected).max() <= 3e-9 * np.abs(expected).max()


def test_two_unit_vectors_meet_halfway() -> None:
    """The mean of two directions bisects their angle, at the mean of their lengths."""
    base, other = np.array([1.0, 0.0]), np.array([0.0, 3.0])
    merged = merge(KARCHER, Example({}, ({},), {}), base, [other - base], ())
    assert np.allclose(merged, 2 * math.sqrt(0.5), atol=1e-14)


def test_zeros_stay_zero() -> None:
    """Tensors that are zero in all models stay so; ones too small to have a direction are averaged, not zeroed."""
    zero = np.zeros(3, np.float32)
    merged = merge(KARCHER, Example({}, ({}, {})), zero, [zero, zero], ())
    assert np.array_equal(bits(merged), bits(zero))
    tiny = np.full(3, 1e-7)
    assert np.allclose(merge(KARCHER, Example({}, ({},), {}), tiny, [tiny], ()), 1.5e-7, rtol=1e-14)


def test_a_zero_model_shortens() -> None:
    """A model that is zero has no direction but counts in the mean length."""
    base = np.array([3.0, 4.0])
    assert np.allclose(merge(KARCHER, Example({}, ({},), {}), base, [-base], ()), base / 2, rtol=1e-15)


def test_opposite_models_take_the_first_direction() -> None:
    """Two opposite models have no mean: the first gives the direction, a base that is only named comes last."""
    base = np.array([3.0, 4.0])
    assert np.allclose(merge(KARCHER, Example({}, ({},), {}), base, [-2 * base], ()), base, rtol=1e-14)
    assert np.allclose(merge(KARCHER, Example({}, ({},)), base, [-2 * base], ()), -base, rtol=1e-14)


def test_equal_models_are_kept() -> None:
    """Models that are all the same give that model, to rounding."""
    base = np.random.default_rng(1).standard_normal(50)
    merged = merge(KARCHER, Example({}, ({}, {})), base, [np.zeros(50), np.zeros(50)], ())
    assert np.allclose(merged, base, rtol=1e-14, atol=0)
