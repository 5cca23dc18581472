from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.operators.breadcrumbs import OPERATORS
from mergepipe.operators.contract import Operator
from mergepipe.stats.contract import BandL1Need, Need, RankNeed
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference, reference_sparse
from tests.operators.problems import (
    DENSITIES,
    LAMBDAS,
    NAMESPACES,
    POSITIVE,
    WEIGHTS,
    Floats,
    Formula,
    Problem,
    Sparsify,
    assert_bits,
    assert_bounded,
    problems,
    six,
)

BREADCRUMBS, BREADCRUMBS_TIES = OPERATORS
BOTH = pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
GAMMAS = six(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]) | st.floats(0, 1))
RECIPES = (
    Example({}, tuple({"weight": weight, "density": 0.5} for weight in (0.5, 0.3, 0.2))),
    Example({"rescale": True, "lambda": 0.6}, ({"weight": 1.0, "density": 0.3, "gamma": 0.2}, {"weight": -0.5})),
    Example(
        {"normalize": True, "int8_mask": True},
        ({"weight": 0.4, "density": 0.9, "gamma": 0.3}, {"weight": 0.8, "density": 0.7, "gamma": 0.0}),
    ),
    Example({"normalize": True}, ({"weight": 0.4, "density": 1e-4}, {"weight": 0.8, "density": 0.0}, {"weight": 1.0})),
)


class TestBreadcrumbs(OperatorContract):
    operator = BREADCRUMBS
    namespaces = NAMESPACES
    recipes = RECIPES


class TestBreadcrumbsTies(OperatorContract):
    operator = BREADCRUMBS_TIES
    namespaces = NAMESPACES
    recipes = RECIPES


def example_of(
    weights: list[float], densities: list[float], gammas: list[float], rescale: bool, normalize: bool, scale: float
) -> Example:
    """A breadcrumbs merge with these parameters."""
    terms = tuple({"weight": w, "density": p, "gamma": g} for w, p, g in zip(weights, densities, gammas, strict=True))
    return Example({"rescale": rescale, "normalize": normalize, "lambda": scale}, terms)


def reference_of(
    operator: Operator,
    problem: Problem,
    weights: list[float],
    densities: list[float],
    gammas: list[float],
    rescale: bool,
    normalize: bool,
    scale: float,
) -> tuple[Sparsify, Formula]:
    """The independent text of a breadcrumbs method; masks and factors come from the whole delta, whatever is read."""

    def sparsify(term: int, delta: Floats) -> Floats:
        if densities[term] >= 1:
            return delta
        whole = problem.deltas[term]
        mask = reference_sparse.breadcrumbs_mask(whole, densities[term], gammas[term])
        factor = reference.l1_factor(whole, mask) if rescale else 1.0
        return np.where(mask, delta * delta.dtype.type(factor), delta.dtype.type(0))

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        if operator.name == "breadcrumbs":
            return reference.task_arithmetic(base, deltas, weights, normalize, scale)
        return reference.elected(base, deltas, weights, normalize, scale)

    return sparsify, formula


@BOTH
@given(problems(), st.booleans(), st.booleans(), LAMBDAS, WEIGHTS, DENSITIES, GAMMAS)
def test_bits_of_the_formula(
    operator: Operator,
    problem: Problem,
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    densities: list[float],
    gammas: list[float],
) -> None:
    """Any parameters, sizes, reads and tiles give the bits of the whole-tensor formula."""
    count = len(problem.deltas)
    parts = weights[:count], densities[:count], gammas[:count]
    sparsify, formula = reference_of(operator, problem, *parts, rescale, normalize, scale)
    assert_bits(operator, example_of(*parts, rescale, normalize, scale), problem, sparsify, formula)


@BOTH
@given(problems(), st.booleans(), st.booleans(), LAMBDAS, POSITIVE, DENSITIES, GAMMAS)
def test_errors_within_the_bound(
    operator: Operator,
    problem: Problem,
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    densities: list[float],
    gammas: list[float],
) -> None:
    """The bound holds for any reads, with each expert's own rescale factor."""
    count = len(problem.deltas)
    parts = weights[:count], densities[:count], gammas[:count]
    sparsify, formula = reference_of(operator, problem, *parts, rescale, normalize, scale)
    assert_bounded(operator, example_of(*parts, rescale, normalize, scale), problem, sparsify, formula)


def kept_of(delta: Floats, density: float, gamma: float, cuts: tuple[int, ...] = ()) -> list[float]:
    """What a single expert of weight 1 leaves of its delta."""
    example = Example({}, ({"weight": 1.0, "density": density, "gamma": gamma},))
    spec = spec_of(BREADCRUMBS, example, delta.size)
    coefficients = resolve(BREADCRUMBS, spec, [delta])
    kept: list[float] = combine(BREADCRUMBS, coefficients, np.zeros_like(delta), [delta], [True], cuts).tolist()
    return kept


def test_leaves_out_the_smallest_and_the_largest() -> None:
    """Of ten entries half are kept: neither the two largest nor the three smallest."""
    delta = np.array([3, -10, 1, 5, -7, 2, 9, -4, 6, 8], np.float32)
    assert kept_of(delta, 0.5, 0.2) == [0, 0, 0, 5, -7, 0, 0, -4, 6, 8]


def test_gamma_zero_keeps_the_largest() -> None:
    """γ = 0, or so small that no entry is meant, takes nothing from the top (mergekit 0.1.4 took everything)."""
    delta = np.array([3, -10, 1, 5], np.float32)
    for gamma in (0.0, 0.24):
        assert kept_of(delta, 0.5, gamma) == [0, -10, 0, 5]


def test_gamma_gives_way_to_density() -> None:
    """Where both shares do not fit, fewer of the largest are left out; a density of 1 keeps them all."""
    delta = np.array([3, -10, 1, 5], np.float32)
    assert kept_of(delta, 0.75, 1.0) == [3, 0, 1, 5]
    assert kept_of(delta, 1.0, 1.0) == delta.tolist()


def test_of_equal_magnitudes_the_earlier_count_as_larger() -> None:
    """Ties at both ends are cut by position, wherever tiles end."""
    delta = np.array([1, -1, 1, -1, 1, -1, 1, -1], np.float32)
    for cuts in ((), (1,), (2, 5), (3,), (1, 2, 3, 4, 5, 6, 7)):
        assert kept_of(delta, 0.5, 0.25, cuts) == [0, 0, 1, -1, 1, -1, 0, 0]


def test_rescale_restores_the_l1_norm() -> None:
    """Under `rescale` what is kept has the L1 norm of the whole delta."""
    delta = np.random.default_rng(1).standard_normal(5_000).astype(np.float32)
    example = Example({"rescale": True}, ({"weight": 1.0, "density": 0.3, "gamma": 0.05},))
    spec = spec_of(BREADCRUMBS, example, delta.size)
    merged = combine(BREADCRUMBS, resolve(BREADCRUMBS, spec, [delta]), np.zeros_like(delta), [delta], [True])
    assert np.count_nonzero(merged) == 1_500
    assert np.abs(merged).sum() == pytest.approx(np.abs(delta).sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("density", "gamma", "rescale", "expected"),
    [
        (0.5, 0.25, False, (RankNeed(6), RankNeed(2))),
        (0.5, 0.25, True, (RankNeed(6), RankNeed(2), BandL1Need(2, 4))),
        (0.5, 0.0, False, (RankNeed(4),)),
        (0.5, 0.9, False, (RankNeed(4),)),
        (0.1, 0.25, True, ()),
        (0.0, 0.25, True, ()),
        (1.0, 0.25, True, ()),
    ],
)
def test_facts_are_asked_for_only_where_they_count(
    density: float, gamma: float, rescale: bool, expected: tuple[Need, ...]
) -> None:
    """Of eight entries: one rank where one end is whole, none where all or nothing is kept."""
    terms = ({"weight": 1.0, "density": density, "gamma": gamma}, {"weight": 0.0, "density": 0.5})
    for operator in OPERATORS:
        assert operator.needs(spec_of(operator, Example({"rescale": rescale}, terms), 8)) == (expected, ())
