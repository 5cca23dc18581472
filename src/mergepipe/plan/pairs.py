"""An aligned family as the index sees it: one pair of tensors per expert and base tensor."""

from __future__ import annotations

from mergepipe.checkpoint.names import parse_role
from mergepipe.core.blocks import block_grid
from mergepipe.index.model import Pair, PairTensor
from mergepipe.plan.family import Family


def index_pairs(family: Family, block_bytes: int) -> list[Pair]:
    """One `Pair` an expert, in recipe order, over the tensors that can be merged; grids as the plan cuts them."""
    pairs = []
    for number, expert in enumerate(family.experts):
        tensors = []
        for aligned in family.tensors:
            part = aligned.parts[number]
            if part is None or not aligned.base.elements:
                continue
            base = aligned.base
            heads = parse_role(base.name, base.shape, family.base.config).row_multiple
            grid = block_grid(base.shape, base.storage.itemsize, block_bytes, heads)
            tensors.append(PairTensor(base, part.tensor, part.elements, grid.block))
        pairs.append(Pair(family.base, expert, f"{number}:{expert.ref}", tuple(tensors)))
    return pairs
