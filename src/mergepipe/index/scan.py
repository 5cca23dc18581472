"""One pass over tensors: everything that is to be learnt of each, from bytes read once where memory allows.

A job is one base tensor with the expert tensors to compare with it. Jobs run on a few threads; what they
find depends on the bytes only, not on threads, memory or the order of work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.dtypes import FloatArray, decode
from mergepipe.core.digest import bytes_digest
from mergepipe.core.leaves import LEAF, block_digest
from mergepipe.errors import MemoryLimitTooSmall
from mergepipe.index.model import BaseFacts, BlockFacts
from mergepipe.index.tiles import Leaf, RawTiles, Source, leaves, spans
from mergepipe.stats import accumulators, magnitudes, masked
from mergepipe.stats.accumulators import BaseLeaf, BaseLeaves, DeltaBatch
from mergepipe.stats.contract import Fact, MaskedL1Need
from mergepipe.stats.magnitudes import MagnitudeCut, Magnitudes
from mergepipe.stats.masked import MaskedL1Sums
from mergepipe.stats.sketch import SKETCH, SketchSigns
from mergepipe.store.contract import ByteStore

# Elements read at once where memory allows: above this, larger reads gain nothing on a local disk.
_SPAN: Final = 1 << 19
_BATCH: Final = 8
_FLOAT64: Final = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class ExpertJob:
    """What to learn of one expert tensor, of which the first `elements` elements count.

    `source` is the key of its store. `densities` ask for cuts, `masks` for masked sums.
    """

    source: str
    tensor: TensorInfo
    elements: int
    densities: tuple[float, ...] = ()
    masks: tuple[MaskedL1Need, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorJob:
    """One base tensor, its grid and its experts. With `blocks` the facts of every block are wanted too."""

    source: str
    tensor: TensorInfo
    block: int
    blocks: bool
    experts: tuple[ExpertJob, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ExpertFinds:
    """What was learnt of one expert tensor; `blocks` and `sketch` of shape (blocks, SKETCH) only if asked for."""

    blocks: BlockFacts | None
    sketch: NDArray[np.float32] | None
    cuts: tuple[MagnitudeCut, ...]
    masked: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TensorFinds:
    """What was learnt in one job; `experts` runs parallel to the job's."""

    base: BaseFacts | None
    experts: tuple[ExpertFinds, ...]


def scan(
    jobs: Sequence[TensorJob],
    stores: Mapping[str, ByteStore],
    memory: int,
    threads: int,
    advance: Callable[[int], None],
) -> list[TensorFinds]:
    """Run all jobs within `memory` bytes of buffers; `advance` is told bytes as they are worked through.

    Raises `MemoryLimitTooSmall` before anything is read.
    """
    least = max((_least_bytes(job) for job in jobs), default=0)
    if memory < least:
        raise MemoryLimitTooSmall("reading one tensor for the index", least, memory)
    workers = max(1, min(threads, len(jobs), memory // max(1, least)))
    run = _Run(stores, memory // workers, advance)
    with ThreadPoolExecutor(workers, thread_name_prefix="index") as pool:
        # Large ones first, so that no thread is left with one at the end; the others in the order of the files.
        share = sum(_payload(job) for job in jobs) // (4 * workers)
        order = sorted(range(len(jobs)), key=lambda n: -_payload(jobs[n]) if _payload(jobs[n]) > share else 0)
        futures = {n: pool.submit(run.job, jobs[n]) for n in order}
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            run.stop()
            pool.shutdown(cancel_futures=True)
    return [futures[n].result() for n in range(len(jobs))]


def first_look_bytes(job: TensorJob, memory: int, threads: int) -> int:
    """Bytes one pass over the job reads; cuts of tensors too large to be kept cost more, which only reading tells."""
    workers = max(1, min(threads, memory // max(1, _least_bytes(job))))
    total = 0
    for group in _arrange(job, memory // workers):
        total += sum(e.elements * e.tensor.storage.itemsize for e in group.experts)
        total += _base_elements(job, group.experts) * job.tensor.storage.itemsize
    return total


@dataclass(frozen=True, slots=True)
class _Group:
    """Experts of a job that are worked through together, and how memory is spent on them."""

    experts: tuple[ExpertJob, ...]
    keep: bool
    span: int
    rooms: tuple[int, ...]


def _arrange(job: TensorJob, memory: int) -> list[_Group]:
    """Group the experts of a job so that the base is read as seldom as `memory` bytes allow."""
    left = memory - _WORKSPACE_BYTES
    experts = job.experts
    base_size = job.tensor.storage.itemsize
    wanted = [_state_bytes(e, _wanted_room(job, e)) for e in experts]
    stored = [e.elements * e.tensor.storage.itemsize for e in experts]
    rooms = tuple(_wanted_room(job, e) for e in experts)
    if _base_elements(job, experts) * base_size + sum(stored) + sum(wanted) <= left:
        return [_Group(experts, True, _SPAN, rooms)]
    widest = max((need + _SPAN * e.tensor.storage.itemsize for need, e in zip(wanted, experts, strict=True)), default=0)
    at_once = (left - _SPAN * base_size) // widest if widest else 1
    if at_once >= 1:
        count = -(-len(experts) // at_once)
        bounds = [len(experts) * n // max(1, count) for n in range(max(1, count) + 1)]
        return [_Group(experts[a:b], False, _SPAN, rooms[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    groups = []
    for expert in experts:
        streams = LEAF * (base_size + expert.tensor.storage.itemsize)
        room = min(_wanted_room(job, expert), left - streams - _state_bytes(expert, 0))
        groups.append(_Group((expert,), False, LEAF, (room,)))
    return groups or [_Group((), False, LEAF, ())]


def _least_bytes(job: TensorJob) -> int:
    """The least memory in which one worker can do a job."""
    streams = [
        LEAF * (job.tensor.storage.itemsize + e.tensor.storage.itemsize)
        + _state_bytes(e, magnitudes.LEAST_ROOM if e.densities else 0)
        for e in job.experts
    ]
    whole = _WORKSPACE_BYTES + max(streams, default=LEAF * job.tensor.storage.itemsize)
    small = _WORKSPACE_BYTES + _payload(job) + sum(_state_bytes(e, _wanted_room(job, e)) for e in job.experts)
    return min(whole, small)


def _payload(job: TensorJob) -> int:
    experts = sum(e.elements * e.tensor.storage.itemsize for e in job.experts)
    return experts + _base_elements(job, job.experts) * job.tensor.storage.itemsize


def _base_elements(job: TensorJob, experts: Sequence[ExpertJob]) -> int:
    """How much of the base is needed: all of it for block facts, else as far as the experts go."""
    return job.tensor.elements if job.blocks else max((e.elements for e in experts), default=0)


def _wanted_room(job: TensorJob, expert: ExpertJob) -> int:
    if not expert.densities:
        return 0
    return magnitudes.useful_room(expert.elements, _compute(job, expert))


def _state_bytes(expert: ExpertJob, room: int) -> int:
    """What is held for one expert while its tensor is read."""
    cuts = magnitudes.fixed_bytes(expert.elements) if expert.densities else 0
    return cuts + room + (masked.WORKSPACE_BYTES if expert.masks else 0)


def _compute(job: TensorJob, expert: ExpertJob) -> np.dtype[Any]:
    return np.result_type(job.tensor.storage.compute, expert.tensor.storage.compute)


# The base's leaf, a delta and its absolute values, up to float64; sums, counting, a mask.
_WORKSPACE_BYTES: Final = (
    3 * LEAF * 8 + accumulators.workspace_bytes(_BATCH) + LEAF * 8 + magnitudes.WORKING_BYTES + LEAF * 8
)


class _Workspace:
    """One worker's buffers."""

    def __init__(self) -> None:
        self.base_leaves = BaseLeaves()
        self.batch = DeltaBatch(_BATCH, SketchSigns())
        self._base = np.empty(LEAF)
        self._delta = np.empty(LEAF)
        self._magnitudes = np.empty(LEAF)

    def base(self, raw: NDArray[np.uint8], tensor: TensorInfo) -> FloatArray:
        """Decode a leaf of the base."""
        count = raw.size // tensor.storage.itemsize
        return decode(raw, tensor.storage, self._base.view(tensor.storage.compute)[:count])

    def delta(
        self, raw: NDArray[np.uint8], tensor: TensorInfo, base: FloatArray, compute: np.dtype[Any]
    ) -> tuple[FloatArray, FloatArray]:
        """δ and |δ| of a leaf; `base` may be longer than the expert's bytes."""
        count = raw.size // tensor.storage.itemsize
        delta = decode(raw, tensor.storage, self._delta.view(compute)[:count])
        np.subtract(delta, base[:count], out=delta)
        return delta, np.abs(delta, out=self._magnitudes.view(compute)[:count])


class _Run:
    """What all workers of one pass share."""

    def __init__(self, stores: Mapping[str, ByteStore], memory: int, advance: Callable[[int], None]) -> None:
        self._stores, self._memory, self._advance = stores, memory, advance
        self._local = threading.local()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make running jobs end early; their results are void."""
        self._stopped.set()

    def job(self, job: TensorJob) -> TensorFinds:
        """Learn all that is wanted of one tensor."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = _Workspace()
        base: _BaseTable | None = None
        finds: list[ExpertFinds] = []
        # Overflow and NaN are data here: they are counted, not raised.
        with np.errstate(all="ignore"):
            for group in _arrange(job, self._memory):
                pass_ = _GroupPass(job, group, self._stores, self._local.workspace, base is None)
                pass_.read(self._advance, self._stopped)
                finds += pass_.finish()
                base = base or pass_.base
        return TensorFinds(base.facts() if base else None, tuple(finds))


class _GroupPass:
    """One tensor of the base and one group of experts."""

    def __init__(
        self, job: TensorJob, group: _Group, stores: Mapping[str, ByteStore], workspace: _Workspace, first: bool
    ) -> None:
        self._job, self._group, self._workspace = job, group, workspace
        self._elements = _base_elements(job, group.experts)
        sources = [Source(stores[job.source], job.tensor, self._elements)]
        sources += [Source(stores[e.source], e.tensor, e.elements) for e in group.experts]
        self._tiles = RawTiles(sources, group.span, group.keep)
        blocks = -(-job.tensor.elements // job.block)
        self.base = _BaseTable(blocks) if job.blocks and first else None
        self._experts = [
            _Expert(job, e, blocks, room) for e, room in zip(group.experts, group.rooms, strict=True)
        ]

    def read(self, advance: Callable[[int], None], stopped: threading.Event) -> None:
        """The first look."""
        job, tiles = self._job, self._tiles
        for start, stop in spans(self._elements, job.block, self._group.span):
            if stopped.is_set():
                return
            raws = [tiles.raw(place, start, stop) for place in range(1 + len(self._experts))]
            for leaf in leaves(start, stop, job.tensor.elements, job.block):
                self._leaf(leaf, start, raws)
            advance(sum(raw.size for raw in raws))

    def finish(self) -> list[ExpertFinds]:
        """Second looks, and what was learnt."""
        return [expert.finish(self._look(place)) for place, expert in enumerate(self._experts)]

    def _leaf(self, leaf: Leaf, start: int, raws: Sequence[NDArray[np.uint8]]) -> None:
        job, workspace = self._job, self._workspace
        raw = _part(raws[0], leaf, start, job.tensor)
        values = workspace.base(raw, job.tensor)
        known: BaseLeaf | None = None
        if job.blocks:
            known = workspace.base_leaves.add(values)
            if self.base is not None:
                self.base.add(leaf, known, bytes_digest(memoryview(raw)))
        batch: list[_Expert] = []
        for expert, stored in zip(self._experts, raws[1:], strict=True):
            raw = _part(stored, leaf, start, expert.job.tensor)
            if not raw.size:
                continue
            delta, sizes = workspace.delta(raw, expert.job.tensor, values, expert.compute)
            expert.feed(leaf.start, sizes)
            if known is not None and expert.table is not None:
                workspace.batch.add(delta, sizes, known.values[: delta.size])
                expert.table.digest(leaf, bytes_digest(memoryview(raw)))
                batch.append(expert)
                if workspace.batch.full:
                    _settle(batch, leaf, workspace.batch)
        _settle(batch, leaf, workspace.batch)

    def _look(self, place: int) -> magnitudes.Look:
        expert, job = self._experts[place], self._job

        def look(wanted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, FloatArray]]:
            for first, end in wanted:
                for start in range(first, end, self._group.span):
                    stop = min(start + self._group.span, end)
                    raws = self._tiles.raw(0, start, stop), self._tiles.raw(1 + place, start, stop)
                    for at in range(start, stop, LEAF):
                        leaf = Leaf(0, 0, at, min(at + LEAF, stop), False)
                        values = self._workspace.base(_part(raws[0], leaf, start, job.tensor), job.tensor)
                        raw = _part(raws[1], leaf, start, expert.job.tensor)
                        yield at, self._workspace.delta(raw, expert.job.tensor, values, expert.compute)[1]

        return look


class _Expert:
    """What is being learnt of one expert tensor."""

    def __init__(self, job: TensorJob, expert: ExpertJob, blocks: int, room: int) -> None:
        self.job = expert
        self.compute = _compute(job, expert)
        self.table = _DeltaTable(blocks) if job.blocks else None
        total = job.tensor.elements
        self._cuts = (
            Magnitudes(expert.elements, total, expert.densities, self.compute, room) if expert.densities else None
        )
        self._masked = MaskedL1Sums(expert.masks) if expert.masks else None

    def feed(self, start: int, sizes: FloatArray) -> None:
        if self._cuts is not None:
            self._cuts.feed(start, sizes)
        if self._masked is not None:
            self._masked.feed(sizes)

    def finish(self, look: magnitudes.Look) -> ExpertFinds:
        return ExpertFinds(
            blocks=None if self.table is None else self.table.facts(),
            sketch=None if self.table is None else self.table.sketch.astype(np.float32),
            cuts=() if self._cuts is None else tuple(self._cuts.finish(look)),
            masked=() if self._masked is None else tuple(self._masked.facts()),
        )


class _BaseTable:
    """Facts of the base's blocks, filled leaf by leaf."""

    def __init__(self, blocks: int) -> None:
        self._sums = np.zeros((2, blocks))
        self._nonfinite = np.zeros(blocks, np.int64)
        self._digest = np.zeros(blocks, np.uint64)
        self._leaves: list[bytes] = []

    def add(self, leaf: Leaf, known: BaseLeaf, digest: bytes) -> None:
        self._sums[0, leaf.block] += known.square
        self._sums[1, leaf.block] = max(self._sums[1, leaf.block], known.largest)
        self._nonfinite[leaf.block] += known.nonfinite
        self._leaves.append(digest)
        if leaf.last:
            self._digest[leaf.block] = block_digest(self._leaves)
            self._leaves.clear()

    def facts(self) -> BaseFacts:
        return BaseFacts(np.sqrt(self._sums[0]), self._sums[1], self._nonfinite, self._digest)


class _DeltaTable:
    """Facts of one delta's blocks, filled leaf by leaf; blocks beyond what the expert covers stay zero."""

    def __init__(self, blocks: int) -> None:
        self.square, self.absolute, self.dot, self.largest = np.zeros((4, blocks))
        self.nonzero, self.nonfinite = np.zeros((2, blocks), np.int64)
        self.sketch = np.zeros((blocks, SKETCH))
        self._digests: dict[int, list[bytes]] = {}

    def digest(self, leaf: Leaf, digest: bytes) -> None:
        self._digests.setdefault(leaf.block, []).append(digest)

    def facts(self) -> BlockFacts:
        digest = np.zeros(self.square.size, np.uint64)
        for block, parts in self._digests.items():
            digest[block] = block_digest(parts)
        return BlockFacts(
            np.sqrt(self.square), self.largest, self.absolute, self.nonzero, self.nonfinite, self.dot, digest
        )


def _settle(batch: list[_Expert], leaf: Leaf, sums: DeltaBatch) -> None:
    """Add the sums of one leaf to the tables of the experts in the batch, and empty it."""
    if not batch:
        return
    found = sums.finish(leaf.number)
    for place, expert in enumerate(batch):
        table = expert.table
        assert table is not None
        table.square[leaf.block] += found.square[place]
        table.absolute[leaf.block] += found.absolute[place]
        table.dot[leaf.block] += found.dot[place]
        table.largest[leaf.block] = max(table.largest[leaf.block], found.largest[place])
        table.nonzero[leaf.block] += found.nonzero[place]
        table.nonfinite[leaf.block] += found.nonfinite[place]
        table.sketch[leaf.block] += found.sketch[place]
    batch.clear()


def _part(raw: NDArray[np.uint8], leaf: Leaf, start: int, tensor: TensorInfo) -> NDArray[np.uint8]:
    """The leaf's bytes of a span that begins at element `start`; shorter where the expert ends."""
    size = tensor.storage.itemsize
    return raw[(leaf.start - start) * size : (leaf.stop - start) * size]
