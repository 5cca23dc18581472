from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.operators.task_arithmetic import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits, combine, spec_of
from tests.operators import reference
from tests.operators.problems import (
    LAMBDAS,
    NAMESPACES,
    WEIGHTS,
    Floats,
    Problem,
    assert_bits,
    assert_bounded,
    problems,
    whole,
)

(TASK_ARITHMETIC,) = OPERATORS


class TestTaskArithmetic(OperatorContract):
    operator = TASK_ARITHMETIC
    namespaces = NAMESPACES
    recipes = (
        Example({}, ({"weight": 0.4}, {"weight": 0.3}, {"weight": -0.2})),
        Example({"normalize": True, "lambda": 0.7}, ({"weight": 1.0}, {"weight": 0.0}, {"weight": 0.3})),
        Example({"normalize": True}, ({"weight": 0.5}, {"weight": -0.5})),
        Example({"int8_mask": True, "rescale": True}, ({"weight": 1.0, "density": 0.5},)),
    )


@given(problems(), st.booleans(), LAMBDAS, WEIGHTS)
def test_bits_of_the_formula(problem: Problem, normalize: bool, scale: float, weights: list[float]) -> None:
    """Any weights, sizes, reads and tiles give the bits of the whole-tensor formula; errors stay within the bound."""
    weights = weights[: len(problem.deltas)]
    example = Example({"normalize": normalize, "lambda": scale}, tuple({"weight": weight} for weight in weights))

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        return reference.task_arithmetic(base, deltas, weights, normalize, scale)

    assert_bits(TASK_ARITHMETIC, example, problem, whole, formula)
    assert_bounded(TASK_ARITHMETIC, example, problem, whole, formula)


def test_divisor_keeps_unread_weights() -> None:
    """Under normalize an unread expert's weight stays in the divisor: the recipe's coefficients are kept."""
    spec = spec_of(TASK_ARITHMETIC, Example({"normalize": True}, ({"weight": 1.0}, {"weight": 3.0})), 1)
    ones = np.ones(1, np.float32)
    merged = combine(TASK_ARITHMETIC, TASK_ARITHMETIC.resolve(spec, [(), ()]), ones, [ones, ones], [True, False])
    assert merged[0] == 1.25


def test_negative_zero_survives_a_vanishing_update() -> None:
    """Updates that cancel or underflow to ±0 leave the base's bits, −0.0 too."""
    spec = spec_of(TASK_ARITHMETIC, Example({"lambda": 0.5}, ({"weight": 1.0}, {"weight": 1.0})), 3)
    base = np.array([-0.0, -0.0, -0.0], np.float32)
    first, second = np.array([[1, 1e-45, -0.0], [-1, 0, -0.0]], np.float32)
    merged = combine(TASK_ARITHMETIC, TASK_ARITHMETIC.resolve(spec, [(), ()]), base, [first, second], [True, True])
    assert np.array_equal(bits(merged), bits(base))
