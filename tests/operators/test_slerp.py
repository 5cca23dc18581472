from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.slerp import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits, spec_of
from tests.operators import reference_geometry as reference
from tests.operators.geometry_problems import assert_budgeted, assert_close, merge
from tests.operators.problems import NAMESPACES, Problem, problems

(SLERP,) = OPERATORS


class TestSlerp(OperatorContract):
    operator = SLERP
    namespaces = NAMESPACES
    recipes = tuple(Example({"t": t}, ({},)) for t in (0.0, 0.3, 1.0, -0.5))


@given(problems(), st.sampled_from([0.0, 0.5, 1.0]) | st.floats(-1, 2))
def test_is_the_formula(problem: Problem, t: float) -> None:
    """Any two tensors, equal, opposite or zero ones too: the formula's value, and an error within the bound."""
    problem = Problem(problem.base, problem.deltas[:1], problem.cuts, problem.read[:1], problem.reads[:1])
    base, other = reference.exact(problem.base), reference.exact(problem.base) + reference.exact(problem.deltas[0])
    norms = [reference.norm(base), reference.norm(other)]
    # At the thresholds themselves the last bit decides.
    assume(all(abs(n - 1e-8) > 1e-12 for n in norms))
    if all(norms):
        assume(abs(abs(np.sum(base * other) / norms[0] / norms[1]) - 0.9995) > 1e-9)
    example = Example({"t": t}, ({},))
    assert_close(SLERP, example, problem, (), reference.slerp(base, other, t), 1e-12)
    assert_budgeted(SLERP, example, problem, ())


def test_equal_models_give_the_base() -> None:
    """A model equal to the base gives the base's bits at any t, and blocks may be copied."""
    base = np.array([1.0, -0.0, 3.5, 0.1], np.float32)
    for t in (0.0, 0.1, 0.77, 1.0, 3.0):
        merged = merge(SLERP, Example({"t": t}, ({},)), base, [np.zeros(4, np.float32)], ())
        assert np.array_equal(bits(merged), bits(base))


def test_length_is_kept_between_models_of_one_length() -> None:
    """Halfway between two models of norm 1 the norm is 1, where their mean's is not."""
    base, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    merged = merge(SLERP, Example({"t": 0.5}, ({},)), base, [other - base], ())
    assert np.allclose(merged, math.sqrt(0.5), atol=1e-15)


@pytest.mark.parametrize("terms", [0, 2])
def test_wants_one_other_model(terms: int) -> None:
    """None or two models beside the base are refused with the number found, before any fact is read for."""
    spec = spec_of(SLERP, Example({"t": 0.5}, ({},) * terms), 4)
    with pytest.raises(RecipeError, match=rf"layer\.weight.*exactly one other model, found {terms}"):
        SLERP.group_needs(spec)
