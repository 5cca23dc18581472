"""The knapsack: within the budget whatever the numbers, and greedy by exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.plan.select import Policy, select

Instance = tuple[NDArray[np.float64], NDArray[np.int64]]

by_policy = pytest.mark.parametrize("policy", list(Policy))
WORTHS = [0.0, 1e-200, 1e-30, 0.5, 1.0, 2.0, 3.0, 7.25, 1e10, 1e200, 1.7e308]
ANY_WORTH = st.sampled_from(WORTHS) | st.floats(0, 1e6)
ANY_COST = st.integers(0, 50)


@st.composite
def instances(
    draw: st.DrawFn,
    worths: st.SearchStrategy[float] = ANY_WORTH,
    costs: st.SearchStrategy[int] = ANY_COST,
) -> Instance:
    """Worths and costs of up to 4 experts and 8 blocks."""
    shape = draw(st.integers(1, 4)), draw(st.integers(0, 8))
    items = shape[0] * shape[1]
    worth = draw(st.lists(worths, min_size=items, max_size=items))
    cost = draw(st.lists(costs, min_size=items, max_size=items))
    return np.array(worth, np.float64).reshape(shape), np.array(cost, np.int64).reshape(shape)


small_integers = instances(st.integers(0, 4).map(float), st.integers(1, 4))


def squared_error(worth: NDArray[np.float64], chosen: NDArray[np.bool_]) -> Fraction:
    """The squared total error, exactly."""
    omitted = [
        sum((Fraction(float(w)) for w, c in zip(column, taken, strict=True) if not c), Fraction(0))
        for column, taken in zip(worth.T, chosen.T, strict=True)
    ]
    return sum((each**2 for each in omitted), Fraction(0))


def greedy(worth: NDArray[np.float64], cost: NDArray[np.int64]) -> list[tuple[int, int]]:
    """All items that are worth something, step by step by brute force; ties go to the first block, then expert."""
    chosen = np.zeros(worth.shape, np.bool_)
    order: list[tuple[int, int]] = []
    while True:
        now = squared_error(worth, chosen)
        best: tuple[Fraction, int, int] | None = None
        for block in range(worth.shape[1]):
            for expert in range(worth.shape[0]):
                if chosen[expert, block] or worth[expert, block] == 0:
                    continue
                trial = chosen.copy()
                trial[expert, block] = True
                gain = (now - squared_error(worth, trial)) / int(cost[expert, block])
                if best is None or gain > best[0]:
                    best = (gain, block, expert)
        if best is None:
            return order
        chosen[best[2], best[1]] = True
        order.append((best[2], best[1]))


@by_policy
@given(instance=instances(), budget=st.integers(0, 400), most=st.none() | st.integers(0, 12), seed=st.integers(0, 3))
def test_the_budget_holds(policy: Policy, instance: Instance, budget: int, most: int | None, seed: int) -> None:
    """Cost and count stay within their limits; nothing without cost or worth is chosen; twice gives the same."""
    worth, cost = instance
    before = worth.copy(), cost.copy()
    chosen = select(worth, cost, budget, most, policy, seed)
    assert chosen.shape == worth.shape
    assert int(cost[chosen].sum()) <= budget
    assert most is None or int(chosen.sum()) <= most
    assert (cost[chosen] > 0).all()
    assert (worth[chosen] > 0).all()
    assert np.array_equal(chosen, select(worth, cost, budget, most, policy, seed))
    assert np.array_equal(before[0], worth)
    assert np.array_equal(before[1], cost)


@by_policy
@given(instance=instances(), budget=st.integers(0, 400))
def test_no_room_is_left_for_what_is_worth_reading(policy: Policy, instance: Instance, budget: int) -> None:
    """Whatever worthy item was left out does not fit into what is left: however unequal the worths."""
    worth, cost = instance
    chosen = select(worth, cost, budget, None, policy, 0)
    left = budget - int(cost[chosen].sum())
    assert (cost[(worth > 0) & (cost > 0) & ~chosen] > left).all()


@by_policy
@given(instance=instances())
def test_a_full_budget_takes_all_that_counts(policy: Policy, instance: Instance) -> None:
    """With room for everything, exactly the items of some worth and some cost are read."""
    worth, cost = instance
    chosen = select(worth, cost, int(cost.sum()), None, policy, 0)
    assert np.array_equal(chosen, (worth > 0) & (cost > 0))


@settings(max_examples=60)
@given(small_integers)
def test_norm_takes_what_a_greedy_would_take_step_by_step(instance: Instance) -> None:
    """Each step takes the item that lowers the squared error most per byte, for every budget a step ends at."""
    worth, cost = instance
    order = greedy(worth, cost)
    for count in range(len(order) + 1):
        taken = order[:count]
        budget = sum(int(cost[item]) for item in taken)
        chosen = select(worth, cost, budget, None, Policy.NORM, 0)
        assert {(int(e), int(b)) for e, b in np.argwhere(chosen)} == set(taken)


@settings(max_examples=60)
@given(instances(st.integers(0, 9).map(float), st.just(1)), st.integers(0, 6))
def test_a_count_takes_the_same_steps(instance: Instance, most: int) -> None:
    """With blocks of one size, a budget of n blocks is n steps."""
    worth, cost = instance
    chosen = select(worth, cost, int(cost.sum()), most, Policy.NORM, 0)
    assert {(int(e), int(b)) for e, b in np.argwhere(chosen)} == set(greedy(worth, cost)[:most])


@settings(max_examples=60)
@given(instances(st.integers(1, 9).map(float), st.just(1)), st.integers(1, 4))
def test_for_one_expert_norm_is_optimal(instance: Instance, most: int) -> None:
    """With one term a block and equal costs no other choice of as many has a smaller error."""
    worth, cost = instance[0][:1], instance[1][:1]
    chosen = select(worth, cost, most, None, Policy.NORM, 0)
    best = np.sort(worth.ravel())[::-1][most:]
    assert squared_error(worth, chosen) == sum((Fraction(float(w)) ** 2 for w in best), Fraction(0))


@pytest.mark.parametrize("policy", [Policy.NORM, Policy.BALANCED])
def test_ties_go_to_the_earlier_block_then_to_the_earlier_expert(policy: Policy) -> None:
    """Among equals, canonical order decides."""
    worth, cost = np.ones((1, 6)), np.full((1, 6), 10, np.int64)
    assert np.flatnonzero(select(worth, cost, 30, None, policy, 0)[0]).tolist() == [0, 1, 2]
    two, costs = np.ones((2, 2)), np.full((2, 2), 10, np.int64)
    assert np.argwhere(select(two, costs, 10, None, Policy.NORM, 0)).tolist() == [[0, 0]]


def test_what_does_not_fit_is_passed_over() -> None:
    """A large block that is too dear does not end the choice."""
    worth = np.array([[9.0, 1.0, 1.0]])
    cost = np.array([[50, 20, 5]], np.int64)
    assert select(worth, cost, 30, None, Policy.NORM, 0).tolist() == [[False, True, True]]


def test_a_tiny_term_beside_a_huge_one_is_still_worth_reading() -> None:
    """Rounding of the block's sum must not make it worthless."""
    worth = np.array([[1e20], [1.0]])
    cost = np.ones((2, 1), np.int64)
    assert select(worth, cost, 2, None, Policy.NORM, 0).all()


def test_worth_beyond_all_numbers_comes_first_and_spoils_nothing() -> None:
    """An infinite or undefined worth is the largest; the others keep their order."""
    worth = np.array([[1.0, np.inf, 3.0, np.nan, 2.0]])
    cost = np.ones((1, 5), np.int64)
    taken = [np.flatnonzero(select(worth, cost, n, None, Policy.NORM, 0)[0]).tolist() for n in (1, 2)]
    assert taken == [[1], [1, 3]]


def test_norm_looks_at_the_block_not_only_at_the_term() -> None:
    """A term in a block of much omitted weight is worth more than an equal one alone: `a(2S − a)`."""
    worth = np.array([[2.0, 2.0], [0.0, 5.0]])
    cost = np.ones((2, 2), np.int64)
    assert np.argwhere(select(worth, cost, 2, None, Policy.NORM, 0)).tolist() in ([[0, 0], [1, 1]], [[0, 1], [1, 1]])
    order = greedy(worth, cost)
    assert order[0] == (1, 1)


@given(
    st.lists(st.lists(st.floats(0.01, 1e3), min_size=6, max_size=6), min_size=2, max_size=4),
    st.lists(st.integers(1, 30), min_size=24, max_size=24),
    st.integers(0, 300),
)
def test_balanced_gives_each_expert_its_share(worths: list[list[float]], costs: list[int], budget: int) -> None:
    """Each expert's reads come within one block of its share of the budget, by its full cost."""
    worth = np.array(worths)
    cost = np.array(costs[: worth.size], np.int64).reshape(worth.shape)
    chosen = select(worth, cost, budget, None, Policy.BALANCED, 0)
    for own, taken in zip(cost, chosen, strict=True):
        share = min(budget * int(own.sum()) // int(cost.sum()), int(own.sum()))
        assert int(own[taken].sum()) > share - int(own.max())


def test_norm_may_starve_an_expert_where_balanced_does_not() -> None:
    """One expert's deltas are a hundred times the other's."""
    worth = np.array([[100.0] * 8, [1.0] * 8])
    cost = np.ones((2, 8), np.int64)
    assert select(worth, cost, 8, None, Policy.NORM, 0).sum(axis=1).tolist() == [8, 0]
    assert select(worth, cost, 8, None, Policy.BALANCED, 0).sum(axis=1).tolist() == [4, 4]


def test_balanced_spends_what_an_expert_does_not_need() -> None:
    """An expert without deltas leaves its share to the others."""
    worth = np.array([[1.0] * 8, [0.0] * 8])
    cost = np.ones((2, 8), np.int64)
    assert select(worth, cost, 8, None, Policy.BALANCED, 0).sum(axis=1).tolist() == [8, 0]


def test_random_depends_on_its_seed_only() -> None:
    """Worths, if they are positive, do not change the choice; the seed does; over seeds every item is chosen."""
    worth, cost = np.ones((3, 20)), np.full((3, 20), 5, np.int64)
    first = select(worth, cost, 100, None, Policy.RANDOM, 1)
    assert np.array_equal(first, select(worth * np.arange(1, 21), cost, 100, None, Policy.RANDOM, 1))
    chosen = [select(worth, cost, 100, None, Policy.RANDOM, seed) for seed in range(40)]
    assert not np.array_equal(chosen[0], chosen[1])
    assert np.logical_or.reduce(chosen).all()
    assert all(each.sum() == 20 for each in chosen)
