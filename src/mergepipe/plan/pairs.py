"""A composition as the index sees it: pairs of a base tensor and the expert tensor merged into it."""

from __future__ import annotations

from mergepipe.core.blocks import block_grid
from mergepipe.index.model import Pair, PairTensor
from mergepipe.plan.compose import Composition
from mergepipe.plan.logical import PairKey, pair_keys


def index_pairs(composition: Composition, block_bytes: int) -> list[Pair]:
    """One `Pair` for each two models some of whose tensors meet, ordered as `LogicalPlan.pairs`; the plan's grids."""
    models = composition.models
    meetings = ((tensor.base_input, term.input) for tensor in composition.tensors for term in tensor.terms)
    tensors: dict[PairKey, list[PairTensor]] = {key: [] for key in pair_keys(meetings, len(models))}
    for tensor in composition.tensors:
        base = tensor.base
        if tensor.copied or not base.elements:
            continue
        block = block_grid(base.shape, base.storage.itemsize, block_bytes, tensor.row_multiple).block
        for term in tensor.terms:
            pair = PairTensor(base, term.tensor, term.elements, block, tensor.name)
            tensors[tensor.base_input, term.input].append(pair)
    return [
        Pair(models[one], models[other], f"{other - 1}:{models[other].ref}", tuple(found))
        for (one, other), found in tensors.items()
    ]
