from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import AccessClass
from mergepipe.operators.passthrough import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits, combine, spec_of
from tests.operators import reference_coupled
from tests.operators.problems import NAMESPACES, Problem, assert_bits, assert_bounded, problems, whole

(PASSTHROUGH,) = OPERATORS
SCALES = st.sampled_from([1.0, 0.0, -1.0, 0.5, 0.3]) | st.floats(-3, 3)


class TestPassthrough(OperatorContract):
    operator = PASSTHROUGH
    namespaces = NAMESPACES
    recipes = (Example({}, ({},)), *(Example({}, ({"scale": scale},)) for scale in (1.0, 0.3, -2.0)))


@given(problems(most_terms=1), SCALES)
def test_bits_of_the_formula(problem: Problem, scale: float) -> None:
    """Any scale, size, reads and tiles give the bits of the formula."""
    assert_bits(
        PASSTHROUGH,
        Example({}, ({"scale": scale},)),
        problem,
        whole,
        lambda base, deltas: reference_coupled.passthrough(base, deltas[0], scale),
    )


@given(problems(most_terms=1), SCALES)
def test_errors_within_the_bound(problem: Problem, scale: float) -> None:
    """Were a block left out, the error would be `|s|‖δ‖`."""
    assert_bounded(
        PASSTHROUGH,
        Example({}, ({"scale": scale},)),
        problem,
        whole,
        lambda base, deltas: reference_coupled.passthrough(base, deltas[0], scale),
    )


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_its_own_reference_is_copied_or_scaled(scale: float) -> None:
    """Without a base, the one model is the reference: its bits, or its elements times the scale."""
    spec = spec_of(PASSTHROUGH, Example({}, (), {"scale": scale}), 5)
    coefficients = PASSTHROUGH.resolve(spec, [])
    base = np.array([1.5, -0.0, 0.0, 3e-8, -7.0], np.float32)
    merged = combine(PASSTHROUGH, coefficients, base, [], [])
    assert np.array_equal(bits(merged), bits(base * np.float32(scale)))
    assert PASSTHROUGH.copies_unread(coefficients) == (scale == 1.0)
    assert PASSTHROUGH.base_gain(coefficients) == pytest.approx(scale)
    assert PASSTHROUGH.gains(coefficients) == ()


def test_its_reads_are_required() -> None:
    """No budget may leave out what is to be passed through."""
    assert PASSTHROUGH.access is AccessClass.REQUIRED


@pytest.mark.parametrize("example", [Example({}, ({}, {})), Example({}, ({},), {})])
def test_takes_one_model(example: Example) -> None:
    """A second model, the base among them, is refused by name."""
    spec = spec_of(PASSTHROUGH, example, 4)
    with pytest.raises(RecipeError, match="passthrough takes one model, found 2"):
        PASSTHROUGH.needs(spec)
