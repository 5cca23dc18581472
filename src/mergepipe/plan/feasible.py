"""Budgets that no choice of blocks can keep: known from headers, recipe and tokenizers, before anything is read."""

from __future__ import annotations

import numpy as np

from mergepipe.errors import BudgetInfeasible
from mergepipe.operators.contract import AccessClass, Operator
from mergepipe.plan.budget import Budget
from mergepipe.plan.cost import block_costs, full_bytes, grid_of, required_bytes
from mergepipe.plan.logical import LogicalPlan


def require_feasible(logical: LogicalPlan, operator: Operator, budget: Budget, block_bytes: int) -> None:
    """Refuse a budget below what must be read whatever is chosen, with `BudgetInfeasible`. Reads nothing."""
    full, required = full_bytes(logical), required_bytes(logical)
    cap = full if budget.cap is None else budget.cap
    if operator.access is AccessClass.COUPLED:
        what = f"{operator.name} decides element by element from all experts together: it cannot leave blocks out and"
        if cap < full:
            raise BudgetInfeasible(full, cap, what)
        # Blocks at the end of tensors are smaller than others: a cap in blocks can bind where its bytes do not.
        if budget.blocks is not None and budget.blocks < (count := _blocks(logical, block_bytes)):
            raise BudgetInfeasible(full, cap, f"a budget of {budget.blocks} blocks of {count}: {what}")
    if required > cap:
        raise BudgetInfeasible(required, cap, "what the recipe takes whole from experts")


def _blocks(logical: LogicalPlan, block_bytes: int) -> int:
    """How many (expert, block) pairs a full read takes, without those of tensors that are read whole anyway."""
    return sum(
        int(np.count_nonzero(block_costs(expert, grid_of(tensor, block_bytes))))
        for tensor in logical.tensors
        if tensor.assembly is None
        for expert in tensor.experts
        if expert.input != 0
    )
