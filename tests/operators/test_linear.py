from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.linear import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits, combine, resolve, spec_of
from tests.operators import reference
from tests.operators.problems import NAMESPACES, WEIGHTS, choices, problems

(LINEAR,) = OPERATORS


class TestLinear(OperatorContract):
    operator = LINEAR
    namespaces = NAMESPACES
    recipes = (
        Example({}, ({"weight": 0.5}, {"weight": 0.2}, {"weight": 0.3}), {"weight": 0.7}),
        Example({}, ({"weight": 1.0}, {"weight": -0.25})),
        Example({"normalize": False}, ({"weight": 0.5}, {"weight": 0.0}, {"weight": 0.4}), {"weight": -1.3}),
        Example({"normalize": False}, ({"weight": 0.5}, {"weight": 0.25}), {"weight": 0.25}),
    )


@given(st.data(), problems(), st.booleans(), st.none() | WEIGHTS)
def test_bits_of_the_formula(data: st.DataObject, problem: problems, normalize: bool, own: float | None) -> None:
    """Any weights, sizes, reads and tiles give the bits of the whole-tensor formula."""
    weights = data.draw(st.composite(choices)(WEIGHTS, problem))
    total = math.fsum([own or 0.0, *weights])
    assume(not normalize or abs(total) > 1e-3)
    example = Example(
        {"normalize": normalize},
        tuple({"weight": weight} for weight in weights),
        None if own is None else {"weight": own},
    )
    spec = spec_of(LINEAR, example, problem.base.size)
    coefficients = resolve(LINEAR, spec, problem.deltas)
    merged = combine(LINEAR, coefficients, problem.base, problem.deltas, problem.read, problem.cuts)
    expected = reference.linear(problem.base, problem.seen, weights, own or 0.0, normalize)
    assert np.array_equal(bits(merged), bits(expected))
