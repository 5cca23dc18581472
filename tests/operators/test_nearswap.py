from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.nearswap import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference_coupled
from tests.operators.problems import NAMESPACES, Problem, assert_bits, assert_bounded, problems, whole

(NEARSWAP,) = OPERATORS


class TestNearswap(OperatorContract):
    operator = NEARSWAP
    namespaces = NAMESPACES
    recipes = tuple(Example({"t": t}, ({},)) for t in (0.0, 1e-4, 0.02, 5.0))


STEPS = st.sampled_from([0.0, 0.125, 0.3, 20.0]) | st.floats(0, 9)


@given(problems(most_terms=1), STEPS)
def test_bits_of_the_formula(problem: Problem, t: float) -> None:
    """Any step, size, reads and tiles give the bits of the whole-tensor formula."""
    example = Example({"t": t}, ({},))
    assert_bits(NEARSWAP, example, problem, whole, lambda base, deltas: reference_coupled.nearswap(base, deltas[0], t))


@given(problems(most_terms=1), STEPS)
def test_errors_within_the_bound(problem: Problem, t: float) -> None:
    """The bound, with block sizes, holds for any reads."""
    example = Example({"t": t}, ({},))
    assert_bounded(
        NEARSWAP, example, problem, whole, lambda base, deltas: reference_coupled.nearswap(base, deltas[0], t)
    )


def test_the_bound_is_the_lesser_of_norm_and_step() -> None:
    """`min(‖δ‖, t√n)` in a block that is left out, the norm alone where sizes are not known."""
    coefficients = resolve(NEARSWAP, spec_of(NEARSWAP, Example({"t": 0.5}, ({},)), 8), [np.zeros(8, np.float32)])
    norms = np.array([[3.0, 0.25, 3.0]])
    reads = np.array([[False, False, True]])
    sizes = np.array([4, 4, 4])
    assert np.array_equal(NEARSWAP.bound(coefficients, norms, reads, sizes), [1.0, 0.25, 0.0])
    assert np.array_equal(NEARSWAP.bound(coefficients, norms, reads), [3.0, 0.25, 0.0])


def test_moves_at_most_by_t() -> None:
    """Near elements are swapped, far ones move by t towards the other model."""
    delta = np.array([0.1, -0.1, 3.0, -3.0, 0.0], np.float32)
    spec = spec_of(NEARSWAP, Example({"t": 0.5}, ({},)), 5)
    merged = combine(NEARSWAP, resolve(NEARSWAP, spec, [delta]), np.zeros(5, np.float32), [delta], [True])
    assert merged.tolist() == pytest.approx([0.1, -0.1, 0.5, -0.5, 0.0])


def test_takes_one_model() -> None:
    """A second model beside the base is refused by name."""
    spec = spec_of(NEARSWAP, Example({"t": 0.5}, ({}, {})), 4)
    with pytest.raises(RecipeError, match="nearswap takes one model beside the base, found 2"):
        NEARSWAP.needs(spec)
    with pytest.raises(RecipeError, match="found 2"):
        NEARSWAP.resolve(spec, [(), ()])
