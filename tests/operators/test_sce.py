from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.operators.contract import AccessClass, Operator
from mergepipe.operators.sce import OPERATORS
from mergepipe.stats.contract import VarianceMaskNeed
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference_coupled
from tests.operators.problems import NAMESPACES, Floats, Problem, assert_bits, problems, whole

SCE, PAPER = OPERATORS
BOTH = pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.version)
RECIPES = (
    Example({}, ({}, {}, {})),
    Example({"select_topk": 0.3, "int8_mask": True}, ({}, {}, {})),
    Example({"select_topk": 0.0}, ({}, {})),
    Example({"select_topk": 1e-6}, ({}, {})),
    Example({"select_topk": 0.8}, ({}, {}, {}, {})),
)
SHARES = st.sampled_from([0.0, 0.01, 0.25, 0.5, 1.0]) | st.floats(0, 1)


class TestSce(OperatorContract):
    operator = SCE
    namespaces = NAMESPACES
    recipes = RECIPES


class TestScePaper(OperatorContract):
    operator = PAPER
    namespaces = NAMESPACES
    recipes = RECIPES


@BOTH
@given(problems(), SHARES, st.sampled_from([1.0, 2.0**-13]))
def test_bits_of_the_formula(operator: Operator, problem: Problem, topk: float, size: float) -> None:
    """Any selection, size, reads and tiles give the bits of the whole-tensor formula, for faint deltas too."""
    problem.deltas[:] = [delta * np.float32(size) for delta in problem.deltas]

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        return reference_coupled.sce(base, deltas, problem.deltas, topk, switch=operator is SCE)

    example = Example({"select_topk": topk}, ({},) * len(problem.deltas))
    assert_bits(operator, example, problem, whole, formula)


def merged(operator: Operator, deltas: list[Floats], topk: float = 1.0) -> list[float]:
    """The merge onto a base of zeros."""
    spec = spec_of(operator, Example({"select_topk": topk}, ({},) * len(deltas)), deltas[0].size)
    base = np.zeros_like(deltas[0])
    coefficients = resolve(operator, spec, deltas, base)
    found: list[float] = combine(operator, coefficients, base, deltas, [True] * len(deltas)).tolist()
    return found


def test_select_calculate_erase_by_hand() -> None:
    """Weights 1/5 and 4/5 by energy; the vote is unweighted, and who loses it leaves the divisor."""
    first, second = np.array([1.0, -2.0, 0.0], np.float32), np.array([4.0, 1.0, 2.0], np.float32)
    energies = np.array([5.0, 21.0]) / 26.0
    expected = [float(energies @ [1, 4]), -2.0, 2.0]
    assert merged(SCE, [first, second]) == pytest.approx(expected, rel=1e-6)


def test_selection_keeps_where_experts_differ_most() -> None:
    """Of four positions that differ, half are merged: those of the largest variance, the earlier of equals."""
    first = np.array([1.0, 5.0, 3.0, 3.0, 2.0], np.float32)
    second = np.array([2.0, 5.0, -3.0, 3.5, 1.0], np.float32)
    assert np.flatnonzero(merged(SCE, [first, second], 0.5)).tolist() == [0, 2]


def test_faint_deltas_are_weighed_alike_by_mergekit_only() -> None:
    """Below 10⁻⁶ of mean squares the default weighs all alike, `paper` by energy; above, both by energy."""
    first, second = np.full(4, 1.0, np.float32), np.full(4, 3.0, np.float32)
    faint = [first * np.float32(1e-4), second * np.float32(1e-4)]
    by_energy = (0.1 * 1 + 0.9 * 3) * 1e-4
    assert merged(SCE, faint) == pytest.approx([2e-4] * 4, rel=1e-5)
    assert merged(PAPER, faint) == pytest.approx([by_energy] * 4, rel=1e-5)
    assert merged(SCE, [first, second]) == pytest.approx([2.8] * 4, rel=1e-5)


def test_one_expert_has_no_variance() -> None:
    """A single expert is merged whole, but nothing of it is selected where a share is: it differs from no other."""
    delta = np.array([1.0, -2.0, 0.5], np.float32)
    assert merged(SCE, [delta]) == delta.tolist()
    assert merged(SCE, [delta], 0.5) == [0.0, 0.0, 0.0]


@BOTH
def test_is_coupled_and_says_why(operator: Operator) -> None:
    """No number is given where something is left out, and zero where nothing is."""
    assert operator.access is AccessClass.COUPLED
    deltas = [np.ones(4, np.float32), np.ones(4, np.float32)]
    coefficients = resolve(operator, spec_of(operator, Example({}, ({}, {})), 4), deltas)
    norms = np.array([[1.0], [0.0]])
    assert "sce selects" in str(operator.bound(coefficients, norms, np.array([[False], [True]])))
    assert np.array_equal(operator.bound(coefficients, norms, np.array([[True], [False]])), [0.0])


def test_facts_are_asked_for_only_where_they_count() -> None:
    """Where nothing is selected, and where the tensor has no expert, nothing is asked."""
    assert SCE.group_needs(spec_of(SCE, Example({}, ({}, {})), 4)) == (VarianceMaskNeed(1.0),)
    assert SCE.group_needs(spec_of(SCE, Example({"select_topk": 0.0}, ({}, {})), 4)) == ()
    assert SCE.group_needs(spec_of(SCE, Example({}, ()), 4)) == ()
