from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator
from mergepipe.operators.dare import OPERATORS
from mergepipe.stats.contract import MaskedL1Need
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference
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
)

BY_VERSION = {operator.version: operator for operator in OPERATORS}
RECIPES = (
    Example({}, tuple({"weight": weight, "density": 0.5} for weight in (0.5, 0.3, 0.2))),
    Example({"normalize": True, "lambda": 0.6}, ({"weight": 1.0, "density": 0.1}, {"weight": 0.5}, {"weight": 0.0})),
    Example({"rescale": False}, ({"weight": -0.4, "density": 0.7}, {"weight": 0.8, "density": 0.0})),
    Example({"int8_mask": True}, ({"weight": 0.3, "density": 1e-9}, {"weight": -0.7, "density": 0.999999})),
    Example({"normalize": True}, ({"weight": 0.3}, {"weight": 0.7})),
)


class TestDareLinear(OperatorContract):
    operator = BY_VERSION["dare_linear@mergekit"]
    namespaces = NAMESPACES
    recipes = RECIPES


class TestDareLinearPaper(OperatorContract):
    operator = BY_VERSION["dare_linear@paper"]
    namespaces = NAMESPACES
    recipes = (*RECIPES[:3], RECIPES[4])


class TestDareTies(OperatorContract):
    operator = BY_VERSION["dare_ties@mergekit"]
    namespaces = NAMESPACES
    recipes = RECIPES


class TestDareTiesPaper(OperatorContract):
    operator = BY_VERSION["dare_ties@paper"]
    namespaces = NAMESPACES
    recipes = (*RECIPES[:3], RECIPES[4])


def reference_of(
    operator: Operator,
    problem: Problem,
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    densities: list[float],
) -> tuple[Sparsify, Formula]:
    """The independent text of a DARE method; each factor comes from the whole delta, whatever is read."""

    def factor(term: int) -> float:
        density = densities[term]
        if not rescale or not 0 < density < 1:
            return 1.0
        if operator.version.endswith("@paper"):
            return 1.0 / density
        delta = problem.deltas[term]
        return reference.l1_factor(delta, reference.dare_mask(delta.size, density, 5, term, "layer.weight"))

    def sparsify(term: int, delta: Floats) -> Floats:
        return reference.dropped(delta, densities[term], factor(term), 5, term, "layer.weight")

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        if operator.name == "dare_ties":
            return reference.elected(base, deltas, weights, normalize, scale)
        return reference.task_arithmetic(base, deltas, weights, normalize, scale)

    return sparsify, formula


@pytest.mark.parametrize("version", BY_VERSION)
@given(problems(), st.booleans(), st.booleans(), LAMBDAS, WEIGHTS, DENSITIES)
def test_bits_of_the_formula(
    version: str,
    problem: Problem,
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    densities: list[float],
) -> None:
    """Any parameters, sizes, reads and tiles give the bits of the whole-tensor formula."""
    operator, count = BY_VERSION[version], len(problem.deltas)
    weights, densities = weights[:count], [density if density > 1e-9 else 0.0 for density in densities[:count]]
    terms = tuple({"weight": w, "density": p} for w, p in zip(weights, densities, strict=True))
    example = Example({"normalize": normalize, "lambda": scale, "rescale": rescale}, terms)
    sparsify, formula = reference_of(operator, problem, rescale, normalize, scale, weights, densities)
    assert_bits(operator, example, problem, sparsify, formula)


@pytest.mark.parametrize("version", BY_VERSION)
@given(problems(), st.booleans(), st.booleans(), LAMBDAS, POSITIVE, DENSITIES)
def test_errors_within_the_bound(
    version: str,
    problem: Problem,
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    densities: list[float],
) -> None:
    """The bound holds for any reads, with each expert's own rescale factor."""
    operator, count = BY_VERSION[version], len(problem.deltas)
    weights, densities = weights[:count], [density if density > 1e-3 else 0.0 for density in densities[:count]]
    terms = tuple({"weight": w, "density": p} for w, p in zip(weights, densities, strict=True))
    example = Example({"normalize": normalize, "lambda": scale, "rescale": rescale}, terms)
    sparsify, formula = reference_of(operator, problem, rescale, normalize, scale, weights, densities)
    assert_bounded(operator, example, problem, sparsify, formula)


def test_restores_the_l1_norm() -> None:
    """The default rescale gives the kept entries the L1 norm of the whole delta."""
    operator = BY_VERSION["dare_linear@mergekit"]
    delta = np.random.default_rng(1).standard_normal(5_000).astype(np.float32)
    spec = spec_of(operator, Example({}, ({"weight": 1.0, "density": 0.3},)), delta.size)
    merged = combine(operator, resolve(operator, spec, [delta]), np.zeros_like(delta), [delta], [True])
    assert 0.25 < np.count_nonzero(merged) / delta.size < 0.35
    assert np.abs(merged).sum() == pytest.approx(np.abs(delta).sum(), rel=1e-5)


def test_masks_are_keyed() -> None:
    """Masks differ from expert to expert, tensor to tensor and seed to seed, and are the same in both methods."""
    ones = np.ones(2_000, np.float32)
    example = Example({"rescale": False}, ({"weight": 1.0, "density": 0.5}, {"weight": 1.0, "density": 0.5}))

    def mask(version: str, term: int, seed: int) -> bytes:
        operator = BY_VERSION[version]
        coefficients = resolve(operator, spec_of(operator, example, ones.size, seed), [ones, ones])
        read = [term == 0, term == 1]
        return combine(operator, coefficients, np.zeros_like(ones), [ones, ones], read).tobytes()

    masks = [mask("dare_linear@mergekit", 0, 0), mask("dare_linear@mergekit", 1, 0), mask("dare_linear@mergekit", 0, 1)]
    assert len(set(masks)) == 3
    assert mask("dare_ties@mergekit", 0, 0) == masks[0]


def test_facts_are_asked_for_only_where_they_count() -> None:
    """Without rescale, in the paper's variant, and of experts that keep all or nothing, no fact is asked for."""
    terms = (
        {"weight": 1.0},
        {"weight": 1.0, "density": 0.0},
        {"weight": 1.0, "density": 0.5},
        {"weight": 0.0, "density": 0.5},
    )
    operator, paper = BY_VERSION["dare_ties@mergekit"], BY_VERSION["dare_ties@paper"]
    needs = operator.needs(spec_of(operator, Example({}, terms), 8))
    assert [len(each) for each in needs] == [0, 0, 1, 0]
    assert isinstance(needs[2][0], MaskedL1Need)
    assert not any(operator.needs(spec_of(operator, Example({"rescale": False}, terms), 8)))
    assert not any(paper.needs(spec_of(paper, Example({}, terms), 8)))


def test_factors_beyond_float32_are_refused() -> None:
    """A rescale factor that float32 cannot hold is refused by name."""
    paper = BY_VERSION["dare_linear@paper"]
    spec = spec_of(paper, Example({}, ({"weight": 1.0, "density": 1e-40},)), 4)
    with pytest.raises(RecipeError, match="rescale factor of expert 1"):
        paper.resolve(spec, [()])
