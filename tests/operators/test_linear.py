from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.linear import OPERATORS
from mergepipe.testing.operators import Example, OperatorContract, bits, combine, spec_of
from tests.operators import reference
from tests.operators.problems import NAMESPACES, WEIGHTS, Floats, Problem, assert_bits, assert_bounded, problems, whole

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


@given(problems(), st.booleans(), st.none() | st.floats(-2, 2), WEIGHTS)
def test_bits_of_the_formula(problem: Problem, normalize: bool, own: float | None, weights: list[float]) -> None:
    """Any weights, sizes, reads and tiles give the bits of the whole-tensor formula; errors stay within the bound."""
    weights = weights[: len(problem.deltas)]
    assume(not normalize or abs(math.fsum([own or 0.0, *weights])) > 1e-3)
    example = Example(
        {"normalize": normalize},
        tuple({"weight": weight} for weight in weights),
        None if own is None else {"weight": own},
    )

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        return reference.linear(base, deltas, weights, own or 0.0, normalize)

    assert_bits(LINEAR, example, problem, whole, formula)
    assert_bounded(LINEAR, example, problem, whole, formula)


def test_is_the_mean_of_models() -> None:
    """Around the base or straight, the weighted mean is the same up to rounding, whoever is the base."""
    generator = np.random.default_rng(0)
    models = [generator.standard_normal(100).astype(np.float32) for _ in range(3)]
    example = Example({}, ({"weight": 2.0}, {"weight": 3.0}), {"weight": 5.0})
    spec = spec_of(LINEAR, example, 100)
    merged = combine(
        LINEAR, LINEAR.resolve(spec, [(), ()]), models[0], [model - models[0] for model in models[1:]], [True, True]
    )
    assert np.allclose(merged, 0.5 * models[0] + 0.2 * models[1] + 0.3 * models[2], atol=1e-6)


def test_normalized_base_is_exact() -> None:
    """Normalised weights leave the base's factor at 1 exactly, so that unread blocks may be copied."""
    spec = spec_of(LINEAR, Example({}, ({"weight": 0.1}, {"weight": 0.2}), {"weight": 0.7}), 4)
    coefficients = LINEAR.resolve(spec, [(), ()])
    assert LINEAR.copies_unread(coefficients)
    plain = spec_of(LINEAR, Example({"normalize": False}, ({"weight": 0.1}, {"weight": 0.2})), 4)
    assert not LINEAR.copies_unread(LINEAR.resolve(plain, [(), ()]))


def test_scaled_base_keeps_its_zeros() -> None:
    """With `a₀ ≠ 1` a zero update leaves `a₀θ₀`, sign of zero included."""
    spec = spec_of(LINEAR, Example({"normalize": False}, ({"weight": 2.0},)), 2)
    base = np.array([-0.0, 3.0], np.float32)
    merged = combine(LINEAR, LINEAR.resolve(spec, [()]), base, [np.zeros(2, np.float32)], [True])
    assert np.array_equal(bits(merged), bits(np.array([-0.0, 6.0], np.float32)))


@pytest.mark.parametrize("weights", [(0.5, -0.5), (0.1, 0.2, -0.3), (0.0, 0.0)])
def test_cancelling_weights_are_refused(weights: tuple[float, ...]) -> None:
    """Weights that add up to nothing cannot be normalised: the error names tensor, weights and way out."""
    spec = spec_of(LINEAR, Example({}, tuple({"weight": weight} for weight in weights)), 4)
    with pytest.raises(RecipeError, match=r"layer\.weight.*add up to.*normalize: false"):
        LINEAR.resolve(spec, [()] * len(weights))


def test_weights_beyond_float32_are_refused() -> None:
    """A weight that float32 cannot hold is refused, not turned into infinity."""
    spec = spec_of(LINEAR, Example({"normalize": False}, ({"weight": 1e39},)), 4)
    with pytest.raises(RecipeError, match="beyond what float32 holds"):
        LINEAR.resolve(spec, [()])
