"""A composition as the index sees it: pairs of a base tensor and the expert tensor merged into it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mergepipe.checkpoint.assembled import Assembled, AssembledCheckpoint
from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.rows import RowTable
from mergepipe.core.blocks import block_grid
from mergepipe.core.dtypes import dtype
from mergepipe.core.extents import Extent
from mergepipe.index.model import Pair, PairTensor
from mergepipe.plan.compose import Composition
from mergepipe.plan.cost import grid_of
from mergepipe.plan.logical import LogicalPlan, PairKey, TensorMerge, pair_keys


def index_pairs(composition: Composition, block_bytes: int) -> list[Pair]:
    """One `Pair` for each two models some of whose tensors meet, ordered as `LogicalPlan.pairs`; the plan's grids.

    Tensors assembled from rows are not in them: see `assembled_pairs`.
    """
    models = composition.models
    meetings = ((tensor.base_input, term.input) for tensor in composition.tensors for term in tensor.terms)
    tensors: dict[PairKey, list[PairTensor]] = {key: [] for key in pair_keys(meetings, len(models))}
    for tensor in composition.tensors:
        base = tensor.base
        if tensor.copied or not base.elements or tensor.rows is not None:
            continue
        block = block_grid(base.shape, base.storage.itemsize, block_bytes, tensor.row_multiple).block
        for term in tensor.terms:
            pair = PairTensor(base, term.tensor, term.elements, block, tensor.name)
            tensors[tensor.base_input, term.input].append(pair)
    return [
        Pair(models[one], models[other], f"{other - 1}:{models[other].ref}", tuple(found))
        for (one, other), found in tensors.items()
    ]


def assembled(logical: LogicalPlan, tensor: TensorMerge, models: Sequence[Checkpoint]) -> Assembled:
    """What an assembled tensor's inputs are put together from."""
    assert tensor.assembly is not None
    inputs = (tensor.base_input, *(expert.input for expert in tensor.experts))
    names = (tensor.base, *(expert.name for expert in tensor.experts))
    return Assembled(
        table=RowTable(logical.row_maps[tensor.assembly.rows]),
        models=inputs,
        tensors=tuple(models[number].tensors[name] for number, name in zip(inputs, names, strict=True)),
        codes=(tensor.dtype, *(expert.dtype for expert in tensor.experts)),
        padding=tuple(np.frombuffer(bytes.fromhex(row), "<f8") for row in tensor.assembly.padding),
    )


def assembled_pairs(logical: LogicalPlan, models: Sequence[Checkpoint], block_bytes: int) -> list[Pair]:
    """Pairs as `index_pairs` gives, of the tensors that are assembled from rows, as they are presented."""
    bases: dict[int, dict[str, tuple[Assembled, int]]] = {}
    tensors: dict[PairKey, list[PairTensor]] = {key: [] for key in logical.pairs}
    parts: dict[PairKey, dict[str, tuple[Assembled, int]]] = {key: {} for key in logical.pairs}
    for tensor in logical.tensors:
        if tensor.assembly is None or not tensor.elements:
            continue
        whole = assembled(logical, tensor, models)
        base = _presented(tensor, 0, tensor.dtype)
        bases.setdefault(tensor.base_input, {})[base.extent.key] = whole, 0
        for place, expert in enumerate(tensor.experts, start=1):
            info = _presented(tensor, place, expert.dtype)
            key = tensor.base_input, expert.input
            parts[key][info.extent.key] = whole, place
            block = grid_of(tensor, block_bytes).block
            tensors[key].append(PairTensor(base, info, tensor.elements, block, tensor.name))
    sources = dict(enumerate(models))
    pairs = []
    for (one, other), found in tensors.items():
        ref, theirs = models[one].ref, models[other].ref
        base_model = AssembledCheckpoint(ref, f"assembled:{one}", {}, (), {}, parts=bases.get(one, {}), sources=sources)
        model = AssembledCheckpoint(
            theirs, f"assembled:{one}:{other}", {}, (), {}, parts=parts[one, other], sources=sources
        )
        pairs.append(Pair(base_model, model, f"{other - 1}:{theirs}", tuple(found)))
    return pairs


def _presented(tensor: TensorMerge, place: int, code: str) -> TensorInfo:
    """One place of an assembled tensor under a key of its own."""
    size = tensor.elements * dtype(code).itemsize
    return TensorInfo(tensor.name, code, tensor.shape, Extent(f"{place}/{tensor.name}", 0, size))
