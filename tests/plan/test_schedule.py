"""The schedule asks for every planned block, for nothing else but paid gaps, within budget and memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint, TensorInfo, WeightFile
from mergepipe.core.blocks import BlockGrid
from mergepipe.core.dtypes import dtype
from mergepipe.core.extents import Extent
from mergepipe.core.leaves import LEAF
from mergepipe.errors import BudgetInfeasible, ManifestMismatch, MemoryLimitTooSmall
from mergepipe.plan.access import AccessPlan, TensorAccess
from mergepipe.plan.bounds import EXACT
from mergepipe.plan.budget import Budget
from mergepipe.plan.cost import block_costs, full_bytes
from mergepipe.plan.logical import ExpertTensor, Input, LogicalPlan, OutputFile, TensorMerge
from mergepipe.plan.schedule import Limits, Schedule, ShardPlan, Step, lay_out, steps
from mergepipe.store.contract import Version

GAP = 128 << 10
Case = tuple[AccessPlan, tuple[Checkpoint, ...]]


@st.composite
def cases(draw: st.DrawFn, gaps: bool = True) -> Case:
    """A plan over up to three experts and four tensors, small and large, some partly covered, any read set."""
    experts = draw(st.integers(1, 3))
    merges, accesses = [], []
    for number in range(draw(st.integers(1, 4))):
        elements = draw(st.sampled_from([0, 1, 7, 1000, 70_000, 200_000, 300_001]))
        block = draw(st.sampled_from([1, 100, 4096, 65_536, 100_000, 500_000]))
        block = max(block, elements // 50, 1)
        base = draw(st.sampled_from(["BF16", "F32", "F8_E4M3", "I64"]))
        parts, reads = [], []
        for expert in range(experts):
            if base == "I64" or draw(st.integers(0, 5)) == 0:
                continue
            code = draw(st.sampled_from(["BF16", "F32"]))
            covered = draw(st.sampled_from([elements, elements, elements // 2, elements // 3]))
            parts.append(ExpertTensor(expert + 1, f"t{number}", code, covered, {}))
            reads.append(draw(read_sets(-(-elements // block))))
        out = draw(st.sampled_from(["F32", base])) if base != "I64" else base
        merges.append(TensorMerge(f"t{number}", (elements,), base, out, f"t{number}", tuple(parts), {}))
        accesses.append(TensorAccess(block, tuple(reads), ((),) * len(parts), ("",) * len(parts)))
    checkpoints = tuple(checkpoint_of(f"m{n}", n, merges, draw(st.integers(0, 200_000))) for n in range(experts + 1))
    inputs = tuple(Input(c.ref, c.url, n - 1, c.header_digest) for n, c in enumerate(checkpoints))
    cut = draw(st.integers(0, len(merges)))
    files = tuple(
        OutputFile(f"f{n}", tuple(part)) for n, part in enumerate([range(cut), range(cut, len(merges))]) if len(part)
    )
    logical = LogicalPlan("task_arithmetic", "task_arithmetic@mergekit", 0, inputs, tuple(merges), files)
    plan = AccessPlan(logical, Budget("x"), "norm", 1, tuple(accesses), full_bytes(logical), 0, EXACT)
    planned = sum(cost for *_, cost in planned_blocks(plan))
    extra = draw(st.sampled_from([0, 1, 5000, 1 << 20])) if gaps else 0
    return replace(plan, planned_bytes=planned, budget=Budget("x", planned + extra)), checkpoints


@st.composite
def read_sets(draw: st.DrawFn, blocks: int) -> str:
    """What a plan says of one expert: all, none, or a bitmap."""
    kind = draw(st.sampled_from(["all", "none", "some", "some"]))
    if kind != "some" or blocks == 0:
        return "none" if kind == "some" else kind
    bits = draw(st.lists(st.booleans(), min_size=blocks, max_size=blocks))
    return np.packbits(np.array(bits), bitorder="little").tobytes().hex()


def checkpoint_of(ref: str, number: int, merges: list[TensorMerge], shift: int) -> Checkpoint:
    """A checkpoint that has each tensor its plan wants, one after another from byte `shift`."""
    tensors, at = {}, shift
    for merge in merges:
        wanted = [(merge.dtype, merge.elements)] if number == 0 else []
        wanted += [(part.dtype, part.elements + 3) for part in merge.experts if part.input == number]
        for code, elements in wanted:
            stop = at + elements * dtype(code).itemsize
            tensors[merge.name] = TensorInfo(merge.name, code, (elements,), Extent("model.safetensors", at, stop))
            at = stop
    file = WeightFile("model.safetensors", Version(at, 0, 0, 0), ref)
    return Checkpoint(ref, f"/m/{ref}", tensors, (file,), {})


def bits_of(plan: AccessPlan, number: int, place: int) -> NDArray[np.bool_]:
    """Which blocks a plan reads of one expert tensor, decoded by hand."""
    access, tensor = plan.tensors[number], plan.logical.tensors[number]
    blocks = -(-tensor.elements // access.block)
    text = access.reads[place]
    if text in ("all", "none"):
        return np.full(blocks, text == "all")
    whole = int.from_bytes(bytes.fromhex(text), "little")
    return np.array([whole >> n & 1 for n in range(blocks)], np.bool_)


def planned_blocks(plan: AccessPlan) -> list[tuple[int, int, int, int, int]]:
    """(tensor, place, first element, end, bytes) of every planned block that the expert covers."""
    found = []
    for number, (tensor, access) in enumerate(zip(plan.logical.tensors, plan.tensors, strict=True)):
        for place, part in enumerate(tensor.experts):
            costs = block_costs(part, BlockGrid(tensor.elements, access.block))
            for block in np.flatnonzero(bits_of(plan, number, place)):
                first = int(block) * access.block
                end = min(first + access.block, part.elements)
                if end > first:
                    found.append((number, place, first, end, int(costs[block])))
    return found


def all_steps(
    plan: AccessPlan, schedule: Schedule, checkpoints: tuple[Checkpoint, ...]
) -> list[tuple[ShardPlan, Step]]:
    """Every step of every shard."""
    return [(shard, step) for shard in schedule.shards for step in steps(plan, shard, checkpoints)]


def limits_of(plan: AccessPlan, slabs: int) -> Limits:
    """Memory for so many times the smallest step."""
    experts = max((len(tensor.experts) for tensor in plan.logical.tensors), default=0)
    return Limits(memory=slabs * (experts + 2) * LEAF * 8)


@settings(max_examples=150)
@given(cases(), st.sampled_from([1, 2, 7, 40]))
def test_steps_partition_every_tensor_in_order(case: Case, slabs: int) -> None:
    """Each element of each tensor is computed once, in output order, in whole blocks or in leaves of one block."""
    plan, checkpoints = case
    schedule = lay_out(plan, checkpoints, limits_of(plan, slabs), 0)
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(len(plan.logical.tensors))}
    order = []
    for shard, step in all_steps(plan, schedule, checkpoints):
        assert step.tensor in shard.tensors
        found[step.tensor].append((step.start, step.stop))
        order.append(step.tensor)
        block = plan.tensors[step.tensor].block
        whole = step.start % block == 0 and (step.stop % block == 0 or step.stop == _elements(plan, step.tensor))
        inside = step.start // block == (step.stop - 1) // block and (step.start % block) % LEAF == 0
        assert whole or inside
    assert order == sorted(order)
    for number, spans in found.items():
        edges = [0, *(stop for _, stop in spans)]
        assert [start for start, _ in spans] == edges[:-1]
        assert edges[-1] == _elements(plan, number)


@settings(max_examples=150)
@given(cases(), st.sampled_from([1, 2, 7, 40]))
def test_scheduled_expert_bytes_are_within_the_cap(case: Case, slabs: int) -> None:
    """The sum over all reads is the sum of the allowances, at least what is planned, at most the cap."""
    plan, checkpoints = case
    schedule = lay_out(plan, checkpoints, limits_of(plan, slabs), 0)
    asked = {shard.name: 0 for shard in schedule.shards}
    for shard, step in all_steps(plan, schedule, checkpoints):
        asked[shard.name] += sum(read.stop - read.start for read in step.reads if read.input)
    assert asked == {shard.name: shard.allowance for shard in schedule.shards}
    assert sum(asked.values()) == schedule.expert_bytes
    assert plan.budget.cap is not None
    assert plan.planned_bytes <= schedule.expert_bytes <= plan.budget.cap
    assert schedule.expert_bytes - plan.planned_bytes == sum(shard.gap_bytes for shard in schedule.shards)


@settings(max_examples=150)
@given(cases(), st.sampled_from([1, 3, 40]))
def test_every_planned_block_is_read_and_nothing_else_but_gaps(case: Case, slabs: int) -> None:
    """Reads land where the block belongs in its slab; what they hold beside planned blocks lies between two of them."""
    plan, checkpoints = case
    schedule = lay_out(plan, checkpoints, limits_of(plan, slabs), 0)
    wanted: dict[tuple[int, int], NDArray[np.bool_]] = {}
    got: dict[tuple[int, int], NDArray[np.int64]] = {}
    for number, tensor in enumerate(plan.logical.tensors):
        for place, part in enumerate(tensor.experts):
            wanted[number, place] = np.zeros(part.elements, np.bool_)
            got[number, place] = np.zeros(part.elements, np.int64)
    for number, place, first, end, _ in planned_blocks(plan):
        wanted[number, place][first:end] = True
    for _, step in all_steps(plan, schedule, checkpoints):
        tensor = plan.logical.tensors[step.tensor]
        places = {part.input: place for place, part in enumerate(tensor.experts)}
        for read in step.reads:
            if not read.input:
                continue
            place = places[read.input]
            part = tensor.experts[place]
            info, size = checkpoints[read.input].tensors[part.name], dtype(part.dtype).itemsize
            first, rest = divmod(read.start - info.extent.start, size)
            count, odd = divmod(read.stop - read.start, size)
            assert (rest, odd, read.key) == (0, 0, info.extent.key)
            assert read.offset == (first - step.start) * size
            assert step.start <= first < first + count <= min(step.stop, part.elements)
            assert place + 1 in step.slabs
            got[step.tensor, place][first : first + count] += 1
            span = wanted[step.tensor, place][first : first + count]
            assert span[0]
            assert span[-1]
            edges = np.flatnonzero(np.diff(np.concatenate([[True], span, [True]]).astype(np.int8)))
            assert all((b - a) * size <= GAP for a, b in edges.reshape(-1, 2))
    for key, mask in wanted.items():
        assert (got[key][mask] == 1).all()
        assert got[key].max(initial=0) <= 1


@settings(max_examples=100)
@given(cases(), st.sampled_from([1, 2, 7, 40]))
def test_the_base_is_read_whole_and_buffers_hold_every_read(case: Case, slabs: int) -> None:
    """One read of the base a step; every read fits its slab; steps and all buffers fit the memory."""
    plan, checkpoints = case
    limits, scratch = limits_of(plan, slabs), 12_345
    limits = replace(limits, memory=limits.memory + scratch)
    schedule = lay_out(plan, checkpoints, limits, scratch)
    for shard, step in all_steps(plan, schedule, checkpoints):
        tensor = plan.logical.tensors[step.tensor]
        info = checkpoints[0].tensors[tensor.base]
        size = info.storage.itemsize
        first = [read for read in step.reads if read.input == 0]
        assert [(read.start, read.stop, read.offset) for read in first] == [
            (info.extent.start + step.start * size, info.extent.start + step.stop * size, 0)
        ]
        assert step.slabs[0] == 0
        assert list(step.slabs) == sorted(set(step.slabs))
        assert all(read.offset + read.stop - read.start <= shard.slab_bytes for read in step.reads)
        assert (step.stop - step.start) * dtype(tensor.out_dtype).itemsize <= shard.slab_bytes
        assert len(step.slabs) + 1 <= shard.slabs
        assert shard.slabs * shard.slab_bytes + scratch <= limits.memory


@settings(max_examples=100)
@given(cases(), st.sampled_from([1, 2, 7, 40]))
def test_whole_blocks_are_not_parted(case: Case, slabs: int) -> None:
    """For methods of whole rows every step ends with a block, also where a block is larger than its tensor."""
    plan, checkpoints = case
    with pytest.raises(MemoryLimitTooSmall) as caught:
        lay_out(plan, checkpoints, Limits(memory=0), 0, True)
    schedule = lay_out(plan, checkpoints, Limits(memory=slabs * caught.value.needed), 0, True)
    for shard, step in all_steps(plan, schedule, checkpoints):
        elements, block = plan.logical.tensors[step.tensor].elements, plan.tensors[step.tensor].block
        assert step.start % block == 0
        assert step.stop % block == 0 or step.stop == elements
        assert shard.slabs * shard.slab_bytes <= slabs * caught.value.needed


@settings(max_examples=60)
@given(cases(gaps=False))
def test_memory_changes_the_steps_not_what_is_read(case: Case) -> None:
    """Without gaps, every memory limit reads the same bytes of every input."""
    plan, checkpoints = case

    def bytes_read(slabs: int) -> dict[int, set[tuple[int, int]]]:
        schedule = lay_out(plan, checkpoints, limits_of(plan, slabs), 0)
        assert schedule.expert_bytes == plan.planned_bytes
        reads = sorted(
            (read.input, read.start, read.stop)
            for _, step in all_steps(plan, schedule, checkpoints)
            for read in step.reads
        )
        joined: dict[int, set[tuple[int, int]]] = {}
        for input_, start, stop in reads:
            runs = joined.setdefault(input_, set())
            before = next((run for run in runs if run[1] == start), None)
            if before:
                runs.remove(before)
                start = before[0]
            runs.add((start, stop))
        return joined

    assert bytes_read(1) == bytes_read(60)


def simple(elements: int, block: int, reads: str, cap: int | None, planned: int) -> Case:
    """One BF16 tensor, one expert."""
    merge = TensorMerge("t0", (elements,), "BF16", "BF16", "t0", (ExpertTensor(1, "t0", "BF16", elements, {}),), {})
    checkpoints = tuple(checkpoint_of(f"m{n}", n, [merge], 0) for n in range(2))
    inputs = tuple(Input(c.ref, c.url, n - 1, c.header_digest) for n, c in enumerate(checkpoints))
    logical = LogicalPlan("linear", "linear@mergekit", 0, inputs, (merge,), (OutputFile("f", (0,)),))
    access = TensorAccess(block, (reads,), ((),), ("",))
    return AccessPlan(logical, Budget("x", cap), "norm", 1, (access,), elements * 2, planned, EXACT), checkpoints


def test_more_memory_makes_longer_spans() -> None:
    """A tensor of 64 leaves: few long steps, or many short ones; reads sum to the same."""
    plan, checkpoints = simple(64 * LEAF, 2048, "all", None, 0)
    counts, sums = [], []
    for memory in (3 * LEAF * 2, 6 * 12 * LEAF * 2, 512 << 20):
        schedule = lay_out(plan, checkpoints, Limits(memory=memory), 0)
        counts.append(len(all_steps(plan, schedule, checkpoints)))
        sums.append(schedule.expert_bytes)
    assert counts[0] == 64
    assert counts[0] > counts[1] > counts[2] >= 2
    assert sums == [64 * LEAF * 2] * 3


def test_gaps_are_read_only_as_far_as_the_budget_has_room() -> None:
    """Blocks 0, 2 and 4 of eight: no room, room for one gap, room for two; a gap too wide is never read."""
    for extra, reads, gaps in ((0, 3, 0), (199, 3, 0), (200, 2, 200), (399, 2, 200), (400, 1, 400), (10**6, 1, 400)):
        plan, checkpoints = simple(800, 100, "15", 600 + extra, 600)
        schedule = lay_out(plan, checkpoints, Limits(), 0)
        ((_, step),) = all_steps(plan, schedule, checkpoints)
        assert len(step.reads) - 1 == reads
        assert schedule.shards[0].gap_bytes == gaps
    block = (GAP + 2) // 2
    plan, checkpoints = simple(block * 3, block, "05", 10**9, 4 * block)
    assert lay_out(plan, checkpoints, Limits(), 0).shards[0].gap_bytes == 0


def spread(layout: str, extra: int) -> Case:
    """Gaps of 200 bytes in two tensors of one file, in two files, in two experts of a step, or in two steps."""
    block, experts = (LEAF, 1) if layout == "steps" else (100, 2 if layout == "experts" else 1)
    elements = 12 * LEAF if layout == "steps" else 300
    names = ["t0", "t1"] if layout in ("tensors", "files") else ["t0"]
    merges = [
        TensorMerge(
            name, (elements,), "BF16", "BF16", name,
            tuple(ExpertTensor(n + 1, name, "BF16", elements, {}) for n in range(experts)), {},
        )
        for name in names
    ]  # fmt: skip
    checkpoints = tuple(checkpoint_of(f"m{n}", n, merges, 0) for n in range(experts + 1))
    inputs = tuple(Input(c.ref, c.url, n - 1, c.header_digest) for n, c in enumerate(checkpoints))
    files = (
        (OutputFile("a", (0,)), OutputFile("b", (1,)))
        if layout == "files"
        else (OutputFile("a", tuple(range(len(names)))),)
    )
    logical = LogicalPlan("linear", "linear@mergekit", 0, inputs, tuple(merges), files)
    text = "4501" if layout == "steps" else "05"
    access = tuple(TensorAccess(block, (text,) * experts, ((),) * experts, ("",) * experts) for _ in merges)
    plan = AccessPlan(logical, Budget("x"), "norm", 1, access, full_bytes(logical), 0, EXACT)
    planned = sum(cost for *_, cost in planned_blocks(plan))
    return replace(plan, planned_bytes=planned, budget=Budget("x", planned + extra)), checkpoints


@pytest.mark.parametrize("layout", ["tensors", "files", "experts", "steps"])
def test_what_one_gap_takes_another_does_not_have(layout: str) -> None:
    """Two equal gaps and room for one and a half: one is read through, wherever the other is."""
    gap = LEAF * 2 if layout == "steps" else 200
    for extra, taken in ((gap - 1, 0), (gap + gap // 2, 1), (2 * gap, 2)):
        plan, checkpoints = spread(layout, extra)
        memory = 3 * 6 * LEAF * 2 * 6 if layout == "steps" else 64 << 20
        schedule = lay_out(plan, checkpoints, Limits(memory=memory), 0)
        assert sum(shard.gap_bytes for shard in schedule.shards) == taken * gap
        assert schedule.expert_bytes == plan.planned_bytes + taken * gap
        assert len(all_steps(plan, schedule, checkpoints)) == (1 if layout == "experts" else 2)


def test_without_a_cap_there_are_no_gaps() -> None:
    """A full read asks for the tensors and nothing else, in one read a step."""
    plan, checkpoints = simple(1000, 10, "all", None, 0)
    schedule = lay_out(plan, checkpoints, Limits(), 0)
    assert schedule.expert_bytes == 2000
    ((_, step),) = all_steps(plan, schedule, checkpoints)
    assert len(step.reads) == 2


def test_too_little_memory_is_said_with_both_figures() -> None:
    """What one span takes, scratch included, and the limit; exactly that much is enough."""
    plan, checkpoints = simple(1000, 10, "all", None, 0)
    with pytest.raises(MemoryLimitTooSmall, match="raise --memory to at least") as caught:
        lay_out(plan, checkpoints, Limits(memory=1000), 777)
    assert caught.value.limit == 1000
    assert caught.value.needed == 3 * LEAF * 2 + 777
    assert f"{caught.value.needed:,}" in str(caught.value)
    lay_out(plan, checkpoints, Limits(memory=caught.value.needed), 777)
    with pytest.raises(MemoryLimitTooSmall):
        lay_out(plan, checkpoints, Limits(memory=caught.value.needed - 1), 777)


def test_a_plan_that_does_not_keep_its_own_budget_is_refused() -> None:
    """Whatever a plan says of its bytes, the schedule's own sum is held against the cap."""
    plan, checkpoints = simple(1000, 10, "all", 1999, 1999)
    with pytest.raises(BudgetInfeasible) as caught:
        lay_out(plan, checkpoints, Limits(), 0)
    assert (caught.value.needed, caught.value.budget) == (2000, 1999)


def test_another_checkpoint_than_the_planned_one_is_refused() -> None:
    """Headers are compared before anything is read; the model is named."""
    plan, checkpoints = simple(1000, 10, "all", None, 0)
    changed = replace(checkpoints[1], files=(replace(checkpoints[1].files[0], header_digest="other"),))
    with pytest.raises(ManifestMismatch, match=r"^m1: "):
        lay_out(plan, (checkpoints[0], changed), Limits(), 0)


def test_steps_are_the_same_every_time() -> None:
    """Reading, computing and resuming walk the same steps."""
    plan, checkpoints = simple(100_000, 1000, "ff00" * 6 + "ff", 10**6, 10**5)
    shard = ShardPlan("f", (0,), 0, 0, 5000, LEAF * 2, 9)
    assert list(steps(plan, shard, checkpoints)) == list(steps(plan, shard, checkpoints))


def test_a_merge_without_tensors_has_nothing_to_do() -> None:
    """No tensor, no step, no byte."""
    plan, checkpoints = simple(0, 10, "all", None, 0)
    schedule = lay_out(plan, checkpoints, Limits(), 0)
    assert schedule.expert_bytes == 0
    assert all_steps(plan, schedule, checkpoints) == []


def _elements(plan: AccessPlan, number: int) -> int:
    return math.prod(plan.logical.tensors[number].shape)
