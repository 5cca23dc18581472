"""The knapsack: numbers in, a set of (expert, block) pairs out. It knows no model and no tensor.

All arrays are of shape (experts, blocks), blocks in canonical (tensor, block) order. An item with
cost 0 does not exist; one with worth 0 (a zero delta) is never chosen.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.random import mask_key

Worth = NDArray[np.float64]
Cost = NDArray[np.int64]
Chosen = NDArray[np.bool_]


class Policy(str, Enum):
    """How blocks are chosen under a budget."""

    NORM = "norm"
    BALANCED = "balanced"
    RANDOM = "random"


def select(worth: Worth, cost: Cost, budget: int, most: int | None, policy: Policy, seed: int) -> Chosen:
    """Choose items of total cost ≤ `budget`, at most `most` of them.

    `worth[i, b]` is what omitting expert i's block b adds to the error of block b; a block's error
    is the sum over its omitted items, the total error the root of the sum of their squares. What is
    beyond all numbers is worth most.
    """
    most_of_all = np.finfo(np.float64).max
    worth = np.nan_to_num(worth, nan=most_of_all, posinf=most_of_all)
    if policy is Policy.BALANCED:
        return _balanced(worth, cost, budget, most)
    if policy is Policy.RANDOM:
        return _take(_random_order(worth, seed), worth, cost, budget, most)
    return _take(_norm_order(worth, cost), worth, cost, budget, most)


def _norm_order(worth: Worth, cost: Cost) -> NDArray[np.int64]:
    """Items by greedy decrease of the squared error per byte: `a(2S − a)/cost`, S the block's remaining sum.

    Within a block items follow one another as the greedy would take them, so their priority is the
    least so far; ties go to the earlier block.
    """
    experts, blocks = worth.shape
    waiting = (cost > 0) & (worth > 0)
    left = np.where(waiting, _scaled(worth), 0.0)
    total = np.zeros(blocks)
    for row in left:
        total += row
    divisor = np.maximum(cost, 1).astype(np.float64)
    column = np.arange(blocks)
    least = np.full(blocks, np.inf)
    priorities = np.empty((experts, blocks))
    items = np.empty((experts, blocks), np.int64)
    for rank in range(experts):
        # S is at least a; where rounding lost a beside a much larger term, it is not.
        gain = left * (2.0 * np.maximum(total, left) - left) / divisor
        gain[~waiting] = -1.0
        best = np.argmax(gain, axis=0)
        least = np.minimum(least, gain[best, column])
        priorities[rank] = least
        items[rank] = best * blocks + column
        total = np.maximum(total - left[best, column], 0.0)
        left[best, column] = 0.0
        waiting[best, column] = False
    order = np.lexsort((np.tile(column, experts), -priorities.ravel()))
    # Squares of the smallest worths underflow to 0: they come last. Below 0 is what was not waiting.
    order = order[priorities.ravel()[order] >= 0]
    return items.ravel()[order]


def _scaled(worth: Worth) -> Worth:
    """The same proportions, small enough to be added and squared."""
    _, exponent = np.frexp(worth.max(initial=0.0))
    scaled: Worth = np.ldexp(worth, -max(0, int(exponent) - 500))  # a power of two: equal worths stay equal
    return scaled


def _random_order(worth: Worth, seed: int) -> NDArray[np.int64]:
    generator = np.random.Generator(np.random.Philox(key=mask_key(seed, "policy", 0, "")))
    return generator.permutation(worth.size).astype(np.int64)


def _take(order: NDArray[np.int64], worth: Worth, cost: Cost, budget: int, most: int | None) -> Chosen:
    """Take items in `order` while they fit; what does not fit is passed over, not the end."""
    flat_cost, flat_worth = cost.ravel(), worth.ravel()
    order = order[(flat_cost[order] > 0) & (flat_worth[order] > 0)]
    chosen = np.zeros(worth.size, np.bool_)
    room = order.size if most is None else most
    while order.size and room > 0:
        costs = flat_cost[order]
        fits = int(np.searchsorted(np.cumsum(costs), budget, side="right"))
        taken = order[: min(fits, room)]
        chosen[taken] = True
        budget -= int(flat_cost[taken].sum())
        room -= taken.size
        order = order[taken.size :]
        order = order[flat_cost[order] <= budget]
    return chosen.reshape(worth.shape)


def _balanced(worth: Worth, cost: Cost, budget: int, most: int | None) -> Chosen:
    """Norm within each expert's share of the budget (by its full cost), then norm with what is left."""
    full = int(cost.sum())
    chosen = np.zeros(worth.shape, np.bool_)
    if full == 0:
        return chosen
    for number in range(worth.shape[0]):
        share = budget * int(cost[number].sum()) // full
        count = None if most is None else most * int(cost[number].sum()) // full
        alone = slice(number, number + 1)
        chosen[alone] = _take(_norm_order(worth[alone], cost[alone]), worth[alone], cost[alone], share, count)
    spent = int(cost[chosen].sum())
    rest_worth = np.where(chosen, 0.0, worth)
    rest = None if most is None else most - int(chosen.sum())
    return chosen | _take(_norm_order(rest_worth, cost), rest_worth, cost, budget - spent, rest)
