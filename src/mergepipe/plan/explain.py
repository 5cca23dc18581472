"""An access plan as text: what is read from whom, where, and what the bound says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from mergepipe.core.units import format_bytes
from mergepipe.plan.access import AccessPlan, read_set
from mergepipe.plan.cost import assembled_bytes, block_costs, grid_of


def explain_plan(plan: AccessPlan) -> Iterator[str]:
    """The plan by expert and by component, shares of each one's full payload; one line a tensor follows."""
    by_expert: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_role: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    rows = []
    for number, tensor in enumerate(plan.logical.tensors):
        grid = grid_of(tensor, plan.block_bytes)
        cells = []
        if tensor.assembly is not None:
            for input_, size in assembled_bytes(plan.logical, tensor):
                if input_ != 0:
                    for total in (by_expert[plan.logical.inputs[input_].source], by_role[_component(tensor.role)]):
                        total[0] += size
                        total[1] += size
            rows.append(f"  {tensor.name}  {list(tensor.shape)}  rows by token, read whole")
            continue
        for place, expert in enumerate(tensor.experts):
            costs = block_costs(expert, grid)
            read = read_set(plan.tensors[number], place, grid.count)
            spent, full = int(costs[read].sum()), int(costs.sum())
            for total in (by_expert[plan.logical.inputs[expert.input].source], by_role[_component(tensor.role)]):
                total[0] += spent
                total[1] += full
            cells.append(f"{np.count_nonzero(read & (costs > 0))}/{np.count_nonzero(costs)}")
        if tensor.experts:
            rows.append(f"  {tensor.name}  {list(tensor.shape)}  blocks read of each expert: {' '.join(cells)}")
        else:
            rows.append(f"  {tensor.name}  {list(tensor.shape)}  copied from the base")
    logical = plan.logical
    experts, tensors = len(logical.inputs) - 1, len(logical.tensors)
    yield f"{logical.method} over {experts} experts, {tensors} tensors, seed {logical.seed}"
    sizes = f"{format_bytes(plan.planned_bytes)} of {format_bytes(plan.full_bytes)}"
    yield f"budget {plan.budget.text}: {sizes}, policy {plan.policy}"
    yield "by expert"
    yield from (_line(name, total) for name, total in by_expert.items())
    yield "by component"
    yield from (_line(name, total) for name, total in sorted(by_role.items()))
    yield "by tensor"
    yield from rows
    yield "output files"
    yield from (f"  {file.name}: {len(file.tensors)} tensors" for file in logical.files)


def _component(role: str) -> str:
    return role.split(" ")[-1]


def _line(name: str, total: list[int]) -> str:
    share = 100 * total[0] / total[1] if total[1] else 0.0
    return f"  {name}: {format_bytes(total[0])} of {format_bytes(total[1])} ({share:.1f} %)"
