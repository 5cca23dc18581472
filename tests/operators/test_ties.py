from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.operators.ties import OPERATORS
from mergepipe.stats.contract import TrimmedL1Need, TrimNeed
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference, reference_sparse
from tests.operators.problems import (
    DENSITIES,
    LAMBDAS,
    NAMESPACES,
    POSITIVE,
    WEIGHTS,
    Floats,
    Problem,
    Sparsify,
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
        Example({"rescale": True}, ({"weight": 0.4, "density": 0.7}, {"weight": 0.8, "density": 0.1})),
        Example({"int8_mask": True}, ({"weight": -0.5, "density": 0.2}, {"weight": -0.7, "density": 0.0})),
        Example({}, ({"weight": 1.0, "density": 0.4}, {"weight": -0.5, "density": 0.4}, {"weight": 0.5})),
    )


def example_of(weights: list[float], densities: list[float], rescale: bool, normalize: bool, scale: float) -> Example:
    """A ties merge with these parameters."""
    terms = tuple({"weight": w, "density": p} for w, p in zip(weights, densities, strict=True))
    return Example({"rescale": rescale, "normalize": normalize, "lambda": scale}, terms)


def sparsify_of(problem: Problem, densities: list[float], rescale: bool) -> Sparsify:
    """Trimming, rescaled by the whole delta's factor whatever is read of it."""

    def sparsify(term: int, delta: Floats) -> Floats:
        density, whole = densities[term], problem.deltas[term]
        if not 0 < density < 1:
            return reference.trimmed(delta, density)
        mask = reference_sparse.trimmed_mask(whole, density)
        factor = reference.l1_factor(whole, mask) if rescale else 1.0
        return np.where(mask, delta * delta.dtype.type(factor), delta.dtype.type(0))

    return sparsify


@given(problems(), st.booleans(), st.booleans(), LAMBDAS, WEIGHTS, DENSITIES)
def test_bits_of_the_formula(
    problem: Problem, rescale: bool, normalize: bool, scale: float, weights: list[float], densities: list[float]
) -> None:
    """Any weights, densities, sizes, reads and tiles give the bits of the whole-tensor formula."""
    count = len(problem.deltas)
    assert_bits(
        TIES,
        example_of(weights[:count], densities[:count], rescale, normalize, scale),
        problem,
        sparsify_of(problem, densities, rescale),
        lambda base, deltas: reference.elected(base, deltas, weights[:count], normalize, scale),
    )


@given(problems(), st.booleans(), st.booleans(), LAMBDAS, WEIGHTS, POSITIVE, DENSITIES)
def test_errors_within_the_bound(
    problem: Problem,
    rescale: bool,
    normalize: bool,
    scale: float,
    mixed: list[float],
    positive: list[float],
    densities: list[float],
) -> None:
    """The bound holds for any reads: for weights of one sign under normalize, for all weights without."""
    count = len(problem.deltas)
    weights = (positive if normalize else mixed)[:count]

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        return reference.elected(base, deltas, weights, normalize, scale)

    example = example_of(weights, densities[:count], rescale, normalize, scale)
    assert_bounded(TIES, example, problem, sparsify_of(problem, densities, rescale), formula)


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


def test_rescale_restores_the_l1_norm() -> None:
    """Under `rescale` the trimmed delta has the L1 norm of the whole one."""
    delta = np.random.default_rng(1).standard_normal(5_000).astype(np.float32)
    spec = spec_of(TIES, Example({"rescale": True}, ({"weight": 1.0, "density": 0.3},)), delta.size)
    merged = combine(TIES, resolve(TIES, spec, [delta]), np.zeros_like(delta), [delta], [True])
    assert np.count_nonzero(merged) == 1_500
    assert np.abs(merged).sum() == pytest.approx(np.abs(delta).sum(), rel=1e-5)


def test_rescale_asks_for_the_sums_of_what_is_trimmed() -> None:
    """Sums are asked for beside the cut; nothing of a delta that is kept whole."""
    spec = spec_of(TIES, Example({"rescale": True}, ({"weight": 1.0, "density": 0.5}, {"weight": 1.0})), 4)
    assert TIES.needs(spec) == ((TrimNeed(0.5), TrimmedL1Need(0.5)), ())


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
