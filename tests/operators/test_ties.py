from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.ties import OPERATORS
from mergepipe.stats.contract import TrimNeed
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference
from tests.operators.problems import (
    DENSITIES,
    LAMBDAS,
    NAMESPACES,
    POSITIVE,
    WEIGHTS,
    Floats,
    Problem,
    assert_bits,
    assert_bounded,
    problems,
)

(TIES,) = OPERATORS


class TestTies(OperatorContract):
    operator = TIES
    namespaces = NAMESPACES
    recipes = (
        Example({}, tuple({"weight": weight, "density": 0.5} for weight in (0.5, 0.3, 0.2))),
        Example({"lambda": 0.6}, ({"weight": 1.0, "density": 0.3}, {"weight": 1.0}, {"weight": 0.0, "density": 0.5})),
        Example({"normalize": False}, ({"weight": -0.4, "density": 0.7}, {"weight": 0.8, "density": 0.1})),
        Example({"int8_mask": True}, ({"weight": -0.5, "density": 0.2}, {"weight": -0.7, "density": 0.0})),
        Example({}, ({"weight": 1.0, "density": 0.4}, {"weight": -0.5, "density": 0.4}, {"weight": 0.5})),
    )


def example_of(weights: list[float], densities: list[float], normalize: bool, scale: float) -> Example:
    """A ties merge with these parameters."""
    terms = tuple({"weight": w, "density": p} for w, p in zip(weights, densities, strict=True))
    return Example({"normalize": normalize, "lambda": scale}, terms)


@given(problems(), st.booleans(), LAMBDAS, WEIGHTS, DENSITIES)
def test_bits_of_the_formula(
    problem: Problem, normalize: bool, scale: float, weights: list[float], densities: list[float]
) -> None:
    """Any weights, densities, sizes, reads and tiles give the bits of the whole-tensor formula."""
    count = len(problem.deltas)
    assert_bits(
        TIES,
        example_of(weights[:count], densities[:count], normalize, scale),
        problem,
        lambda term, delta: reference.trimmed(delta, densities[term]),
        lambda base, deltas: reference.elected(base, deltas, weights[:count], normalize, scale),
    )


@given(problems(), st.booleans(), LAMBDAS, WEIGHTS, POSITIVE, DENSITIES)
def test_errors_within_the_bound(
    problem: Problem, normalize: bool, scale: float, mixed: list[float], positive: list[float], densities: list[float]
) -> None:
    """The bound holds for any reads: for weights of one sign under normalize, for all weights without."""
    count = len(problem.deltas)
    weights = (positive if normalize else mixed)[:count]

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        return reference.elected(base, deltas, weights, normalize, scale)

    example = example_of(weights, densities[:count], normalize, scale)
    assert_bounded(TIES, example, problem, lambda term, delta: reference.trimmed(delta, densities[term]), formula)


def test_the_election_by_hand() -> None:
    """One column per case: agreement, a lost vote, a tie going to plus, a lone voter, nobody."""
    first = np.array([2.0, 2.0, 1.0, 4.0, 0.0], np.float32)
    second = np.array([4.0, -1.0, -1.0, 0.0, 0.0], np.float32)
    spec = spec_of(TIES, Example({}, ({"weight": 1.0}, {"weight": 1.0})), 5)
    merged = combine(TIES, TIES.resolve(spec, [(), ()]), np.zeros(5, np.float32), [first, second], [True, True])
    assert merged.tolist() == [3.0, 2.0, 1.0, 4.0, 0.0]


def test_trims_the_whole_tensor_with_its_quota_of_ties() -> None:
    """Of equal magnitudes just as many are kept as density allows, the first ones, wherever tiles end."""
    delta = np.array([1, -1, 1, 2, 1, -1], np.float32)
    spec = spec_of(TIES, Example({}, ({"weight": 1.0, "density": 0.5},)), 6)
    coefficients = resolve(TIES, spec, [delta])
    for cuts in ([], [1], [2, 4], [3], [1, 2, 3, 4, 5]):
        merged = combine(TIES, coefficients, np.zeros(6, np.float32), [delta], [True], cuts)
        assert merged.tolist() == [1, -1, 0, 2, 0, 0]


def test_facts_are_asked_for_only_where_they_count() -> None:
    """Nothing is asked of experts that keep all, keep nothing, or weigh nothing."""
    terms = (
        {"weight": 1.0},
        {"weight": 1.0, "density": 0.0},
        {"weight": 0.0, "density": 0.5},
        {"weight": 1, "density": 0.5},
    )
    assert TIES.needs(spec_of(TIES, Example({}, terms), 8)) == ((), (), (), (TrimNeed(0.5),))


def test_rescale_is_refused() -> None:
    """`rescale: true` would need a fact that is not there: refused by name before anything is read."""
    spec = spec_of(TIES, Example({"rescale": True}, ({"weight": 1.0, "density": 0.5},)), 4)
    with pytest.raises(RecipeError, match=r"rescale: true.*not supported"):
        TIES.needs(spec)
    untrimmed = spec_of(TIES, Example({"rescale": True}, ({"weight": 1.0},)), 4)
    assert TIES.needs(untrimmed) == ((),)


def test_no_bound_for_mixed_signs_under_normalize() -> None:
    """Weights of both signs under normalize have no bound, said why; a weight of a term without effect is no sign."""
    norms, reads = np.ones((2, 1)), np.array([[True], [False]])
    mixed = spec_of(TIES, Example({}, ({"weight": 1.0}, {"weight": -1.0})), 4)
    assert "both signs" in str(TIES.bound(TIES.resolve(mixed, [(), ()]), norms, reads))
    inert = spec_of(TIES, Example({}, ({"weight": 1.0}, {"weight": -1.0, "density": 0.0})), 4)
    assert np.array_equal(TIES.bound(TIES.resolve(inert, [(), ()]), norms, reads), [0.0])


def test_bound_is_no_looser_than_its_formula() -> None:
    """The bound never exceeds λ[(Σ_all‖x‖²)^½ + (Σ_read‖x‖²)^½], and is just that where nothing is read."""
    spec = spec_of(TIES, Example({"lambda": 2.0}, ({"weight": 1.0}, {"weight": 0.2}, {"weight": 3.0})), 4)
    coefficients = TIES.resolve(spec, [(), (), ()])
    norms = np.array([[3.0, 3.0], [4.0, 4.0], [12.0, 12.0]])
    reads = np.array([[False, True], [False, True], [False, False]])
    bound = TIES.bound(coefficients, norms, reads)
    assert not isinstance(bound, str)
    assert bound[0] == pytest.approx(26.0)
    assert bound[1] <= 26.0 + 10.0


def test_weights_of_zero_merge_nothing() -> None:
    """With all weights 0 the base comes back, and no block is worth anything."""
    spec = spec_of(TIES, Example({}, ({"weight": 0.0}, {"weight": 0.0})), 3)
    coefficients = TIES.resolve(spec, [(), ()])
    base, delta = np.array([-0.0, 1.0, 2.0], np.float32), np.ones(3, np.float32)
    assert combine(TIES, coefficients, base, [delta, delta], [True, True]).tobytes() == base.tobytes()
    assert TIES.gains(coefficients) == (0.0, 0.0)
