"""The schedule: when and how bytes are read. Nothing here may change an output byte.

A step is a span of one output tensor, computed at once. Steps are made on the fly from the access
plan, so that a schedule takes no memory that grows with the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.core.dtypes import dtype
from mergepipe.core.extents import PAGE, coalesce
from mergepipe.core.leaves import LEAF
from mergepipe.errors import BudgetInfeasible, ManifestMismatch, MemoryLimitTooSmall
from mergepipe.plan.access import ALL, NONE, AccessPlan, TensorAccess, read_set
from mergepipe.plan.cost import required_of
from mergepipe.plan.logical import ExpertTensor, TensorMerge

# Above this, larger reads gain nothing on a local disk.
_LARGEST_SLAB = 4 << 20
# Reads issued ahead: with fewer steps in flight, storage waits for arithmetic.
_STEPS_AHEAD = 6
# A gap this small is cheaper to read through than to seek over.
_GAP = 128 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources; they change speed only. `memory` bounds data buffers, in bytes."""

    memory: int = 512 << 20
    readers: int = 4
    workers: int = 2


@dataclass(frozen=True, slots=True)
class Read:
    """One ranged read: bytes `[start, stop)` of `key` of an input, to `offset` in the slab of a place.

    Place 0 is the tensor's base, place p its p-th expert, counted from 1.
    """

    input: int
    place: int
    key: str
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Step:
    """Elements `[start, stop)` of one output tensor: whole blocks, or leaves of one block.

    `slabs` lists the inputs that need a buffer (the base first, then experts by their place in the
    tensor's `experts`, counted from 1). `reads` are the ranged reads, in order; none where the tensor is
    assembled from rows: whoever executes the step reads what its rows are made of.
    """

    tensor: int
    start: int
    stop: int
    slabs: tuple[int, ...]
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One output file: its tensors, its part of the budget, and the geometry of its steps.

    `allowance` is the exact sum of the shard's expert reads, `gap_bytes` what of it lies in gaps
    between planned blocks. `slab_bytes` is the size of one buffer, `slabs` how many there are.
    """

    name: str
    tensors: tuple[int, ...]
    allowance: int
    gap_bytes: int
    gap_limit: int
    slab_bytes: int
    slabs: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """All shards, and what they read of the experts in total."""

    shards: tuple[ShardPlan, ...]
    expert_bytes: int


def lay_out(
    plan: AccessPlan,
    checkpoints: Sequence[Checkpoint],
    limits: Limits,
    scratch_bytes: int,
    whole_blocks: bool = False,
) -> Schedule:
    """Size buffers to the memory limit, merge neighbouring reads, and prove the sum within the budget.

    `scratch_bytes` is what computing takes beside the slabs; with `whole_blocks` no step parts a block.
    Raises `MemoryLimitTooSmall` or `BudgetInfeasible` before anything is read, `ManifestMismatch` if a
    checkpoint is not the planned one.
    """
    for planned, found in zip(plan.logical.inputs, checkpoints, strict=True):
        if planned.header_digest != found.header_digest:
            raise ManifestMismatch(
                f"{planned.ref}: tensor names, dtypes, shapes, offsets or file sizes differ from the planned ones "
                f"(planned header {planned.header_digest}, found {found.header_digest}); plan again"
            )
    slab_bytes, slabs = _slabs(plan, limits, scratch_bytes, whole_blocks)
    left = 0 if plan.budget.cap is None else plan.budget.cap - plan.planned_bytes
    shards = []
    for file in plan.logical.files:
        shard = ShardPlan(file.name, file.tensors, 0, 0, max(0, left), slab_bytes, slabs)
        gaps = _gap_bytes(plan, shard, checkpoints)
        left -= gaps
        shards.append(replace(shard, allowance=_planned_bytes(plan, file.tensors) + gaps, gap_bytes=gaps))
    total = sum(shard.allowance for shard in shards)
    if plan.budget.cap is not None and total > plan.budget.cap:
        raise BudgetInfeasible(total, plan.budget.cap, "the schedule")
    return Schedule(tuple(shards), total)


def steps(plan: AccessPlan, shard: ShardPlan, checkpoints: Sequence[Checkpoint]) -> Iterator[Step]:
    """The shard's steps in output order; every call gives the same."""
    gap_left = shard.gap_limit
    for number in shard.tensors:
        tensor = plan.logical.tensors[number]
        grid_block = plan.tensors[number].block
        if tensor.assembly is not None:
            places = tuple(range(1 + len(tensor.experts)))
            for start, stop in _spans(tensor, grid_block, shard.slab_bytes):
                yield Step(number, start, stop, places, ())
            continue
        infos = _infos(tensor, checkpoints)
        blocks = -(-tensor.elements // grid_block)
        reads = [read_set(plan.tensors[number], expert, blocks) for expert in range(len(tensor.experts))]
        for start, stop in _spans(tensor, grid_block, shard.slab_bytes):
            step, gaps = _step(number, tensor, infos, reads, grid_block, start, stop, gap_left)
            gap_left -= gaps
            yield step


def _step(
    number: int,
    tensor: TensorMerge,
    infos: Sequence[tuple[int, TensorInfo]],
    reads: Sequence[NDArray[np.bool_]],
    block: int,
    start: int,
    stop: int,
    gap_left: int,
) -> tuple[Step, int]:
    input_, info = infos[0]
    asked = [_read(input_, 0, info, start, start, stop)]
    slabs = [0]
    gaps = 0
    for place, ((input_, info), expert, read) in enumerate(zip(infos[1:], tensor.experts, reads, strict=True), start=1):
        runs = _runs(read, block, start, min(stop, expert.elements))
        if not runs:
            continue
        size = info.storage.itemsize
        merged = coalesce([(a * size, b * size) for a, b in runs], _GAP, gap_left - gaps)
        gaps += sum(b - a for a, b in merged) - sum(b - a for a, b in runs) * size
        slabs.append(place)
        asked += [_read(input_, place, info, start, a // size, b // size) for a, b in merged]
    return Step(number, start, stop, tuple(slabs), tuple(asked)), gaps


def _runs(read: NDArray[np.bool_], block: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Element runs of the blocks read within `[start, stop)`, one a block (`coalesce` joins them)."""
    if start >= stop:
        return []
    first = start // block
    inside = np.flatnonzero(read[first : -(-stop // block)]) + first
    return [(max(start, int(b) * block), min(stop, (int(b) + 1) * block)) for b in inside]


def _read(input_: int, place: int, info: TensorInfo, origin: int, start: int, stop: int) -> Read:
    size = info.storage.itemsize
    begin = info.extent.start
    return Read(input_, place, info.extent.key, begin + start * size, begin + stop * size, (start - origin) * size)


def _spans(tensor: TensorMerge, block: int, slab_bytes: int) -> Iterator[tuple[int, int]]:
    """Whole blocks up to a slab's size, or leaves of a block larger than a slab."""
    most = slab_bytes // _widest(tensor)
    block = min(block, max(1, tensor.elements))  # the only block of a tensor ends with it
    if block <= most:
        stride = most // block * block
        for start in range(0, tensor.elements, stride):
            yield start, min(start + stride, tensor.elements)
        return
    stride = most // LEAF * LEAF
    for first in range(0, tensor.elements, block):
        end = min(first + block, tensor.elements)
        for start in range(first, end, stride):
            yield start, min(start + stride, end)


def _widest(tensor: TensorMerge) -> int:
    codes = [tensor.dtype, tensor.out_dtype, *(expert.dtype for expert in tensor.experts)]
    return max(dtype(code).itemsize for code in codes)


def _infos(tensor: TensorMerge, checkpoints: Sequence[Checkpoint]) -> list[tuple[int, TensorInfo]]:
    return [
        (tensor.base_input, checkpoints[tensor.base_input].tensors[tensor.base]),
        *((expert.input, checkpoints[expert.input].tensors[expert.name]) for expert in tensor.experts),
    ]


def _gap_bytes(plan: AccessPlan, shard: ShardPlan, checkpoints: Sequence[Checkpoint]) -> int:
    """What the shard's expert reads have beyond the planned blocks: found by going through the steps.

    A gap is one whole block or more, so only steps of tensors whose blocks are small are gone through: of a large
    family, that is none, where all would be hundreds of thousands of reads.
    """
    widest = min(_GAP, shard.gap_limit)
    parted = tuple(number for number in shard.tensors if _smallest_gap(plan, number) <= widest)
    reads = (read for step in steps(plan, replace(shard, tensors=parted), checkpoints) for read in step.reads)
    return sum(read.stop - read.start for read in reads if read.input) - _planned_bytes(plan, parted)


def _smallest_gap(plan: AccessPlan, number: int) -> float:
    """Bytes of the smallest block that may lie between two read ones of one tensor; infinite where none can."""
    tensor, access = plan.logical.tensors[number], plan.tensors[number]
    if tensor.assembly is not None:
        return math.inf
    parted = (each for each, read in zip(tensor.experts, access.reads, strict=True) if read not in (ALL, NONE))
    return min((access.block * dtype(each.dtype).itemsize for each in parted), default=math.inf)


def _planned_bytes(plan: AccessPlan, tensors: Sequence[int]) -> int:
    total = 0
    for number in tensors:
        tensor, access = plan.logical.tensors[number], plan.tensors[number]
        total += required_of(plan.logical, tensor)
        if tensor.assembly is not None:
            continue
        total += sum(
            _read_elements(access, place, expert, tensor) * dtype(expert.dtype).itemsize
            for place, expert in enumerate(tensor.experts)
            if expert.input != 0
        )
    return total


def _read_elements(access: TensorAccess, place: int, expert: ExpertTensor, tensor: TensorMerge) -> int:
    """How many elements of one expert lie in the blocks to be read."""
    if access.reads[place] == NONE:
        return 0
    read = read_set(access, place, -(-tensor.elements // access.block))
    whole, rest = divmod(expert.elements, access.block)
    return int(np.count_nonzero(read[:whole])) * access.block + (rest if rest and read[whole] else 0)


def _slabs(plan: AccessPlan, limits: Limits, scratch_bytes: int, whole_blocks: bool) -> tuple[int, int]:
    """Size and number of buffers: room for several steps, each of one slab an input and one for the result."""
    widest = max((_widest(tensor) for tensor in plan.logical.tensors), default=1)
    most = max((len(tensor.experts) for tensor in plan.logical.tensors), default=0) + 2
    span = LEAF
    if whole_blocks:
        blocks = (min(a.block, t.elements) for a, t in zip(plan.tensors, plan.logical.tensors, strict=True))
        span = max((LEAF, *blocks))
    smallest = span * widest
    room = limits.memory - scratch_bytes
    if room < most * smallest:
        raise MemoryLimitTooSmall(
            f"one span of {span:,} elements of {most - 2} experts", most * smallest + scratch_bytes, limits.memory
        )
    slab = max(smallest, min(_LARGEST_SLAB, room // (most * _STEPS_AHEAD)) // smallest * smallest)
    # A slab has room to begin where in a page its bytes begin in their file.
    return slab, max(most, room // (slab + PAGE))
