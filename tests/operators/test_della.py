from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator
from mergepipe.operators.della import OPERATORS
from mergepipe.stats.contract import RankedMaskL1Need
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference, reference_sparse
from tests.operators.problems import (
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
    row_problems,
    six,
)

DELLA, DELLA_LINEAR = OPERATORS
BOTH = pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
# Density and epsilon of an expert; all keep probabilities within (0, 1).
SHARES = six(
    st.sampled_from([(0.0, 0.1), (1.0, 0.1), (0.5, 0.0), (0.5, 0.49), (0.3, 0.15), (0.9, 0.05)])
    | st.tuples(st.floats(0.01, 0.99), st.floats(0, 0.5)).filter(lambda share: share[0] - share[1] > 0)
    .filter(lambda share: share[0] + share[1] < 1)
)  # fmt: skip
RECIPES = (
    Example({}, tuple({"weight": weight, "density": 0.5} for weight in (0.5, 0.3, 0.2))),
    Example({"rescale": False, "lambda": 0.6}, ({"weight": 1.0, "density": 0.3, "epsilon": 0.2}, {"weight": 0.5})),
    Example(
        {"normalize": False, "int8_mask": True},
        ({"weight": 0.4, "density": 0.9, "epsilon": 0.05}, {"weight": -0.8, "density": 0.7, "epsilon": 0.0}),
    ),
    Example({"normalize": True}, ({"weight": 0.4, "density": 0.5}, {"weight": 0.8, "density": 0.0}, {"weight": 0.0})),
)


class TestDella(OperatorContract):
    operator = DELLA
    namespaces = NAMESPACES
    recipes = RECIPES


class TestDellaOfAVector(OperatorContract):
    """A vector is one row, so it has a single tile."""

    operator = DELLA
    namespaces = NAMESPACES
    recipes = RECIPES[:1]
    shape = (1_037,)


class TestDellaLinear(OperatorContract):
    operator = DELLA_LINEAR
    namespaces = NAMESPACES
    recipes = RECIPES


def example_of(
    weights: list[float], shares: list[tuple[float, float]], rescale: bool, normalize: bool, scale: float
) -> Example:
    """A della merge with these parameters."""
    terms = tuple({"weight": w, "density": p, "epsilon": e} for w, (p, e) in zip(weights, shares, strict=True))
    return Example({"rescale": rescale, "normalize": normalize, "lambda": scale}, terms)


def reference_of(
    operator: Operator,
    row: int,
    problem: Problem,
    weights: list[float],
    shares: list[tuple[float, float]],
    rescale: bool,
    normalize: bool,
    scale: float,
) -> tuple[Sparsify, Formula]:
    """The independent text of a DELLA method; masks and factors come from the whole delta, whatever is read."""

    def sparsify(term: int, delta: Floats) -> Floats:
        density, epsilon = shares[term]
        if density >= 1:
            return delta
        if density <= 0:
            return np.zeros_like(delta)
        whole = problem.deltas[term]
        mask = reference_sparse.della_mask(whole, row, density, epsilon, 5, term, "layer.weight")
        factor = reference.l1_factor(whole, mask) if rescale else 1.0
        return np.where(mask, delta * delta.dtype.type(factor), delta.dtype.type(0))

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        if operator.name == "della_linear":
            return reference.task_arithmetic(base, deltas, weights, normalize, scale)
        return reference.elected(base, deltas, weights, normalize, scale)

    return sparsify, formula


@BOTH
@given(row_problems(), st.booleans(), st.booleans(), LAMBDAS, WEIGHTS, SHARES)
def test_bits_of_the_formula(
    operator: Operator,
    rows: tuple[int, Problem],
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    shares: list[tuple[float, float]],
) -> None:
    """Any parameters, rows, reads and tiles give the bits of the whole-tensor formula."""
    row, problem = rows
    count = len(problem.deltas)
    weights, shares = weights[:count], shares[:count]
    sparsify, formula = reference_of(operator, row, problem, weights, shares, rescale, normalize, scale)
    assert_bits(operator, example_of(weights, shares, rescale, normalize, scale), problem, sparsify, formula, row)


@BOTH
@given(row_problems(), st.booleans(), st.booleans(), LAMBDAS, POSITIVE, SHARES)
def test_errors_within_the_bound(
    operator: Operator,
    rows: tuple[int, Problem],
    rescale: bool,
    normalize: bool,
    scale: float,
    weights: list[float],
    shares: list[tuple[float, float]],
) -> None:
    """The bound holds for any reads, with each expert's own rescale factor."""
    row, problem = rows
    count = len(problem.deltas)
    weights, shares = weights[:count], shares[:count]
    sparsify, formula = reference_of(operator, row, problem, weights, shares, rescale, normalize, scale)
    assert_bounded(operator, example_of(weights, shares, rescale, normalize, scale), problem, sparsify, formula, row)


def kept_by_rank(density: float, epsilon: float, ranked: Callable[[Floats], Floats]) -> list[float]:
    """The share kept at each of four ranks, over many rows of four entries; `ranked` orders each row."""
    rows = 4_000
    delta = ranked(np.tile(np.array([1, 2, 3, 4], np.float32), (rows, 1)))
    example = Example({"rescale": False}, ({"weight": 1.0, "density": density, "epsilon": epsilon},))
    spec = spec_of(DELLA_LINEAR, example, delta.size, shape=delta.shape)
    coefficients = resolve(DELLA_LINEAR, spec, [delta.ravel()])
    merged = combine(DELLA_LINEAR, coefficients, np.zeros(delta.size, np.float32), [delta.ravel()], [True])
    return [float(np.count_nonzero(np.abs(merged) == rank)) / rows for rank in (1, 2, 3, 4)]


@pytest.mark.parametrize("ranked", [lambda rows: rows, lambda rows: -rows[:, ::-1], lambda rows: rows[:, [2, 0, 3, 1]]])
def test_keeps_larger_entries_more_often(ranked: Callable[[Floats], Floats]) -> None:
    """Keep probabilities rise evenly from p − ε to p + ε by magnitude, wherever in the row an entry is."""
    assert kept_by_rank(0.5, 0.3, ranked) == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.03)
    assert kept_by_rank(0.5, 0.0, ranked) == pytest.approx([0.5] * 4, abs=0.03)


def test_rows_of_one_entry_are_kept_with_the_density() -> None:
    """Where a row has a single rank its probability is p (mergekit divides zero by zero)."""
    ones = np.ones(4_000, np.float32)
    spec = spec_of(
        DELLA_LINEAR, Example({"rescale": False}, ({"weight": 1.0, "density": 0.3},)), 4_000, shape=(4_000, 1)
    )
    merged = combine(DELLA_LINEAR, resolve(DELLA_LINEAR, spec, [ones]), np.zeros_like(ones), [ones], [True])
    assert np.count_nonzero(merged) / 4_000 == pytest.approx(0.3, abs=0.03)


def test_rescale_restores_the_l1_norm() -> None:
    """The default rescale gives the kept entries the L1 norm of the whole delta."""
    delta = np.random.default_rng(1).standard_normal(5_000).astype(np.float32)
    spec = spec_of(DELLA_LINEAR, Example({}, ({"weight": 1.0, "density": 0.3},)), delta.size, shape=(50, 100))
    merged = combine(DELLA_LINEAR, resolve(DELLA_LINEAR, spec, [delta]), np.zeros_like(delta), [delta], [True])
    assert np.abs(merged).sum() == pytest.approx(np.abs(delta).sum(), rel=1e-5)


@BOTH
@pytest.mark.parametrize(("density", "epsilon"), [(0.9, 0.15), (0.1, 0.1), (0.85, 0.15), (0.5, 0.5)])
def test_probabilities_outside_are_refused(operator: Operator, density: float, epsilon: float) -> None:
    """Density ± epsilon must lie strictly between 0 and 1: refused by name, before facts are asked for and after."""
    spec = spec_of(operator, Example({}, ({"weight": 1.0, "density": density, "epsilon": epsilon},)), 4)
    with pytest.raises(RecipeError, match=r"layer\.weight.*expert 1.*epsilon below"):
        operator.needs(spec)
    with pytest.raises(RecipeError, match="keep probabilities"):
        operator.resolve(spec, [()])


def test_facts_are_asked_for_only_where_they_count() -> None:
    """Sums over rows of the last dimension; none of experts that keep all or nothing, none without rescale."""
    terms = ({"weight": 1.0, "density": 0.5}, {"weight": 1.0}, {"weight": 1.0, "density": 0.0, "epsilon": 0.5})
    needs = DELLA.needs(spec_of(DELLA, Example({}, terms), 8, shape=(2, 4)))
    assert [len(each) for each in needs] == [1, 0, 0]
    need = needs[0][0]
    assert isinstance(need, RankedMaskL1Need)
    assert (need.density, need.epsilon, need.row) == (0.5, 0.15, 4)
    vector = DELLA.needs(spec_of(DELLA, Example({}, terms), 8))[0][0]
    assert isinstance(vector, RankedMaskL1Need)
    assert vector.row == 8
    assert not any(DELLA.needs(spec_of(DELLA, Example({"rescale": False}, terms), 8)))
