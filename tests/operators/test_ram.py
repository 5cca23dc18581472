from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.operators.contract import AccessClass, Operator
from mergepipe.operators.ram import OPERATORS
from mergepipe.stats.contract import OverlapNeed
from mergepipe.testing.operators import Example, OperatorContract, combine, resolve, spec_of
from tests.operators import reference_coupled
from tests.operators.problems import NAMESPACES, Floats, Problem, assert_bits, problems, whole

RAM, RAMPLUS = OPERATORS
BOTH = pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
EPSILONS = st.sampled_from([0.0, 1e-5, 0.125, 0.3, 100.0])


class TestRam(OperatorContract):
    operator = RAM
    namespaces = NAMESPACES
    recipes = (Example({}, ({}, {}, {})), Example({"epsilon": 0.02}, ({}, {})), Example({"epsilon": 0.0}, ({}, {})))


class TestRamPlus(OperatorContract):
    operator = RAMPLUS
    namespaces = NAMESPACES
    recipes = (
        Example({}, ({}, {}, {})),
        Example({"epsilon": 0.02, "r": 0.7, "alpha": 0.9}, ({}, {})),
        Example({"epsilon": 0.01, "r": -0.5}, ({}, {}, {}, {})),
    )


@given(problems(), EPSILONS)
def test_bits_of_ram(problem: Problem, epsilon: float) -> None:
    """Any threshold, size, reads and tiles give the bits of the whole-tensor formula."""
    example = Example({"epsilon": epsilon}, ({},) * len(problem.deltas))
    assert_bits(RAM, example, problem, whole, lambda base, deltas: reference_coupled.ram(base, deltas, epsilon))


@given(problems(), EPSILONS, st.floats(-1, 1), st.floats(0, 2))
def test_bits_of_ramplus(problem: Problem, epsilon: float, r: float, alpha: float) -> None:
    """The same with what one expert alone changed strengthened, by counts of the whole tensor whatever is read."""
    example = Example({"epsilon": epsilon, "r": r, "alpha": alpha}, ({},) * len(problem.deltas))

    def formula(base: Floats, deltas: list[Floats]) -> Floats:
        return reference_coupled.ramplus(base, deltas, problem.deltas, r, alpha, epsilon)

    assert_bits(RAMPLUS, example, problem, whole, formula)


def merged(operator: Operator, deltas: list[Floats], **parameters: float) -> list[float]:
    """The merge onto a base of zeros."""
    spec = spec_of(operator, Example(parameters, ({},) * len(deltas)), deltas[0].size)
    base = np.zeros_like(deltas[0])
    found: list[float] = combine(operator, resolve(operator, spec, deltas), base, deltas, [True] * len(deltas)).tolist()
    return found


FIRST = np.array([2.0, 2.0, 1e-6, 0.0, 3.0], np.float32)
SECOND = np.array([4.0, 0.0, 1.0, -0.0, -1.0], np.float32)


def test_ram_by_hand() -> None:
    """Shared entries are averaged, those of one expert alone kept in full, those below the threshold dropped."""
    assert merged(RAM, [FIRST, SECOND]) == [3.0, 2.0, 1.0, 0.0, 1.0]


def test_ramplus_by_hand() -> None:
    """Both share two entries and have one of their own: 1 + r·min(2, alpha) each."""
    assert merged(RAMPLUS, [FIRST, SECOND], r=0.1, alpha=5.0) == pytest.approx([3.0, 2.4, 1.2, 0.0, 1.0])
    assert merged(RAMPLUS, [FIRST, SECOND], r=0.1, alpha=0.5) == pytest.approx([3.0, 2.1, 1.05, 0.0, 1.0])


@BOTH
def test_one_expert_is_all_its_own(operator: Operator) -> None:
    """A single expert shares nothing: what it changed is taken over as it is."""
    assert merged(operator, [SECOND]) == [4.0, 0.0, 1.0, 0.0, -1.0]


@BOTH
def test_is_coupled_and_says_why(operator: Operator) -> None:
    """No number is given where something is left out, and zero where nothing is."""
    assert operator.access is AccessClass.COUPLED
    coefficients = resolve(operator, spec_of(operator, Example({}, ({}, {})), 5), [FIRST, SECOND])
    norms = np.array([[1.0], [0.0]])
    assert "ram averages" in str(operator.bound(coefficients, norms, np.array([[False], [True]])))
    assert np.array_equal(operator.bound(coefficients, norms, np.array([[True], [False]])), [0.0])


def test_facts_are_asked_for_only_where_they_count() -> None:
    """Ram needs none; ramplus_tl the counts at its threshold, as float32 holds it."""
    assert RAM.group_needs(spec_of(RAM, Example({}, ({}, {})), 4)) == ()
    assert RAMPLUS.group_needs(spec_of(RAMPLUS, Example({}, ({}, {})), 4)) == (OverlapNeed(float(np.float32(1e-5))),)
    assert RAMPLUS.group_needs(spec_of(RAMPLUS, Example({}, ()), 4)) == ()
