"""One pass over tensors: everything that is to be learnt of each, from bytes read once where memory allows.

A job is one base tensor with the expert tensors to compare with it. Jobs run on a few threads; what they
find depends on the bytes only, not on threads, memory or the order of work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.digest import bytes_digest
from mergepipe.core.dtypes import FloatArray, decode
from mergepipe.core.leaves import LEAF
from mergepipe.errors import MemoryLimitTooSmall
from mergepipe.index.model import BaseFacts, BlockFacts
from mergepipe.index.tables import BaseTable, BlockDigests, DeltaTable
from mergepipe.index.tiles import Leaf, RawTiles, Source, leaves, raw_bytes, spans
from mergepipe.index.workers import on_threads
from mergepipe.stats import accumulators, banded, magnitudes, masked, ranked
from mergepipe.stats.accumulators import BaseLeaf, BaseLeaves, DeltaBatch, DeltaLeaves
from mergepipe.stats.banded import BandL1Sums
from mergepipe.stats.contract import BandL1Need, Fact, MaskedL1Need, RankedMaskL1Need
from mergepipe.stats.loops import LeafLook, Loops, NumpyLoops, Tally, quickest_loops
from mergepipe.stats.magnitudes import MagnitudeCut, Magnitudes
from mergepipe.stats.masked import MaskedL1Sums
from mergepipe.stats.ranked import RankedMaskL1Sums
from mergepipe.stats.runs import RUN, RUNS_BYTES, Runs, no_runs, quickest_runs
from mergepipe.stats.sketch import SketchSigns
from mergepipe.store.contract import ByteStore

# Elements read at once where memory allows: above this, larger reads gain nothing on a local disk.
_SPAN: Final = 1 << 19
_BATCH: Final = 8
# Reads under way at once; a local disk answers four as quickly as it can.
_READERS: Final = 4
# Bytes from which on compiled loops save more than loading them takes.
_WORTH_COMPILING: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class ExpertJob:
    """What to learn of one expert tensor, of which the first `elements` elements count.

    `source` is the key of its store. `ranks` ask for cuts, `masks` and `ranked` for masked sums, `bands` for
    sums between cuts, all of whose ranks (`banded.ranks_of`) are among `ranks`.
    """

    source: str
    tensor: TensorInfo
    elements: int
    ranks: tuple[int, ...] = ()
    masks: tuple[MaskedL1Need, ...] = ()
    ranked: tuple[RankedMaskL1Need, ...] = ()
    bands: tuple[BandL1Need, ...] = ()

    @property
    def bytes(self) -> int:
        return self.elements * self.tensor.storage.itemsize


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
    """What was learnt of one expert tensor; `blocks` and `sketch` of shape (blocks, SKETCH) only if asked for.

    The other fields run parallel to the job's questions.
    """

    blocks: BlockFacts | None
    sketch: NDArray[np.float32] | None
    cuts: tuple[MagnitudeCut, ...]
    masked: tuple[Fact, ...]
    ranked: tuple[Fact, ...]
    banded: tuple[Fact, ...]


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
    least, tensor = max(((_least_bytes(job), job.tensor.name) for job in jobs), default=(0, ""))
    if memory < least:
        raise MemoryLimitTooSmall(f"reading {tensor} for the index", least, memory)
    workers = max(1, min(threads, len(jobs), memory // max(1, least)))
    sizes = [_payload(job) for job in jobs]
    compiled = sum(sizes) >= _WORTH_COMPILING
    loops, runs = (quickest_loops, quickest_runs) if compiled else (NumpyLoops, no_runs)
    with ThreadPoolExecutor(_READERS, "index-read") as readers:
        run = _Run(stores, memory // workers, advance, lambda: _Workspace(loops(), runs), readers)
        return on_threads(run.job, jobs, sizes, workers, run.stop)


@dataclass(frozen=True, slots=True)
class DigestJob:
    """The first `elements` elements of a tensor whose blocks are to be hashed."""

    source: str
    tensor: TensorInfo
    elements: int
    block: int

    @property
    def bytes(self) -> int:
        return self.elements * self.tensor.storage.itemsize


def scan_digests(
    jobs: Sequence[DigestJob], stores: Mapping[str, ByteStore], threads: int, advance: Callable[[int], None]
) -> list[NDArray[np.uint64]]:
    """The digest of every block that an index of these tensors would hold."""
    stopped = threading.Event()

    def run(job: DigestJob) -> NDArray[np.uint64]:
        digests = BlockDigests(-(-job.elements // job.block))
        held = raw_bytes([(job.elements, job.tensor.storage.itemsize)], _SPAN, False)
        source = Source(stores[job.source], job.tensor, job.elements)
        tiles = RawTiles([source], _SPAN, False, np.empty(held, np.uint8))
        for start, stop in spans(job.elements, job.block, _SPAN):
            if stopped.is_set():
                break
            raw = tiles.raw(0, start, stop)
            for leaf in leaves(start, stop, job.elements, job.block):
                digests.add(leaf.block, bytes_digest(memoryview(_part(raw, leaf, start, job.tensor))))
            advance(raw.size)
        return digests.finish()

    return on_threads(run, jobs, [job.bytes for job in jobs], max(1, threads), stopped.set)


def foreseen_bytes(job: TensorJob, memory: int, threads: int) -> int:
    """Bytes that working through the job reads, all looks that are certain included.

    Cuts of tensors too large to be kept cost more, which only reading tells.
    """
    workers = max(1, min(threads, memory // max(1, _least_bytes(job))))
    total = 0
    for group in _arrange(job, memory // workers):
        looks = [group.experts, () if group.keep else _banded(group.experts)]
        for experts in looks:
            total += sum(expert.bytes for expert in experts)
        total += _base_elements(job, group.experts) * job.tensor.storage.itemsize
        total += _covered(looks[1]) * job.tensor.storage.itemsize
    return total


@dataclass(frozen=True, slots=True)
class _Group:
    """Experts of a job that are worked through together, and how memory is spent on them.

    `raw` is the size of all read buffers, where each source has `slots` (see `RawTiles`), `held` of what is
    kept of the experts' tensors from leaf to leaf;
    `rooms` and `working` are what the counting of magnitudes may take per expert and for the one that is
    being finished, `ranking` what the ranking of rows takes.
    """

    experts: tuple[ExpertJob, ...]
    keep: bool
    span: int
    slots: int
    raw: int
    held: int
    rooms: tuple[int, ...]
    working: int
    ranking: int

    @property
    def bytes(self) -> int:
        """All of it, beside the workspace."""
        return self.raw + self.held + self.working + self.ranking


def _group(
    job: TensorJob, experts: tuple[ExpertJob, ...], keep: bool, span: int, room_of: Callable[[ExpertJob], int]
) -> _Group:
    held = [(_base_elements(job, experts), job.tensor.storage.itemsize)]
    held += [(e.elements, e.tensor.storage.itemsize) for e in experts]
    rooms = tuple(room_of(e) if e.ranks else 0 for e in experts)
    working = max((_working_bytes(e, room) for e, room in zip(experts, rooms, strict=True)), default=0)
    ranking = max((ranked.working_bytes(need) for e in experts for need in e.ranked), default=0)
    states = sum(_state_bytes(job, e, room) for e, room in zip(experts, rooms, strict=True))
    slots = 2 if span > LEAF else 1
    return _Group(experts, keep, span, slots, raw_bytes(held, span, keep, slots), states, rooms, working, ranking)


def _arrange(job: TensorJob, memory: int) -> list[_Group]:
    """Group the experts of a job so that the base is read as seldom as `memory` bytes allow."""

    def useful(expert: ExpertJob) -> int:
        return magnitudes.useful_room(expert.elements, _compute(job, expert))

    left = memory - _WORKSPACE_BYTES
    kept = _group(job, job.experts, True, _SPAN, useful)
    if kept.bytes <= left:
        return [kept]
    for count in range(1, len(job.experts) + 1):
        bounds = [len(job.experts) * n // count for n in range(count + 1)]
        groups = [_group(job, job.experts[a:b], False, _SPAN, useful) for a, b in pairwise(bounds)]
        if all(group.bytes <= left for group in groups):
            return groups
    return [_smallest(job, expert) for expert in job.experts]


def _smallest(job: TensorJob, expert: ExpertJob) -> _Group:
    return _group(job, (expert,), False, LEAF, lambda _: 0)


def _least_bytes(job: TensorJob) -> int:
    """The least memory in which one worker can do a job."""
    return _WORKSPACE_BYTES + max(_smallest(job, expert).bytes for expert in job.experts)


def _payload(job: TensorJob) -> int:
    experts = sum(expert.bytes for expert in job.experts)
    return experts + _base_elements(job, job.experts) * job.tensor.storage.itemsize


def _base_elements(job: TensorJob, experts: Sequence[ExpertJob]) -> int:
    """How much of the base is needed: all of it for block facts, else as far as the experts go."""
    return job.tensor.elements if job.blocks else _covered(experts)


def _covered(experts: Sequence[ExpertJob]) -> int:
    """How many elements of the base have a counterpart in one of the experts."""
    return max((expert.elements for expert in experts), default=0)


def _banded(experts: Sequence[ExpertJob]) -> tuple[ExpertJob, ...]:
    """Those that take a second look."""
    return tuple(expert for expert in experts if expert.bands)


def _working_bytes(expert: ExpertJob, room: int) -> int:
    """What is taken for one expert while it is finished."""
    if not expert.ranks:
        return 0
    return magnitudes.useful_working(expert.elements) if room else magnitudes.LEAST_WORKING


def _state_bytes(job: TensorJob, expert: ExpertJob, room: int) -> int:
    """What is held for one expert while its tensor is read."""
    cuts = magnitudes.FIXED_BYTES if expert.ranks else 0
    sums = masked.WORKSPACE_BYTES if expert.masks else 0
    sums += banded.WORKSPACE_BYTES if expert.bands else 0
    sums += sum(ranked.held_bytes(need, _compute(job, expert)) for need in expert.ranked)
    return cuts + room + sums


def _compute(job: TensorJob, expert: ExpertJob) -> np.dtype[Any]:
    return np.result_type(job.tensor.storage.compute, expert.tensor.storage.compute)


# The base's leaf and the absolute values of a delta, up to float64; sums, counting, a mask.
_WORKSPACE_BYTES: Final = (
    2 * LEAF * 8 + accumulators.workspace_bytes(_BATCH) + LEAF * 8 + magnitudes.LEAF_BYTES + LEAF * 8
)


class _Workspace:
    """One worker's buffers."""

    def __init__(self, loops: Loops, runs: Callable[[], Runs | None]) -> None:
        self.loops = loops
        self.signs = SketchSigns()
        self.base_leaves = BaseLeaves()
        self.batch = DeltaBatch(_BATCH, self.signs)
        self._base = np.empty(LEAF)
        self._magnitudes = np.empty(LEAF)
        self._raw = np.empty(0, np.uint8)
        self._new_runs = runs
        self._runs: Runs | None = None

    def runs(self, spare: int) -> Runs | None:
        """Calls for runs of leaves, if there are any and `spare` bytes are enough: nothing else depends on it."""
        if spare < RUNS_BYTES:
            self._runs = None
        elif self._runs is None:
            self._runs = self._new_runs()
        return self._runs

    def raw(self, size: int, spare: int) -> NDArray[np.uint8]:
        """At least `size` bytes for reads; those of the last time, if they are no more than `spare` bytes too many."""
        if not size <= self._raw.size <= size + spare:
            self._raw = np.empty(0, np.uint8)  # given back first
            self._raw = np.empty(size, np.uint8)
        return self._raw

    def base(self, raw: NDArray[np.uint8], tensor: TensorInfo) -> FloatArray:
        """Decode a leaf of the base."""
        count = raw.size // tensor.storage.itemsize
        return decode(raw, tensor.storage, self._base.view(tensor.storage.compute)[:count])

    def second(
        self, raw: NDArray[np.uint8], tensor: TensorInfo, base: FloatArray, compute: np.dtype[Any]
    ) -> FloatArray:
        """|δ| of a leaf that is looked at again; `base` may be longer than the expert's bytes."""
        return self.sizes(self.loops.leaf(raw, tensor.storage, base, compute, None, None).delta)

    def sizes(self, delta: FloatArray) -> FloatArray:
        """|δ| of a leaf."""
        return np.abs(delta, out=self._magnitudes.view(delta.dtype)[: delta.size])


class _Run:
    """What all workers of one pass share."""

    def __init__(
        self,
        stores: Mapping[str, ByteStore],
        memory: int,
        advance: Callable[[int], None],
        workspace: Callable[[], _Workspace],
        readers: Executor,
    ) -> None:
        self._stores, self._memory, self._advance = stores, memory, advance
        self._workspace, self._readers = workspace, readers
        self._local = threading.local()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Make running jobs end early; their results are void."""
        self._stopped.set()

    def job(self, job: TensorJob) -> TensorFinds:
        """Learn all that is wanted of one tensor."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = self._workspace()
        base: BaseTable | None = None
        finds: list[ExpertFinds] = []
        # Overflow and NaN are data here: they are counted, not raised.
        with np.errstate(all="ignore"):
            for group in _arrange(job, self._memory):
                spare = self._memory - _WORKSPACE_BYTES - group.bytes
                runs = self._local.workspace.runs(spare)
                raw = self._local.workspace.raw(group.raw, spare - (RUNS_BYTES if runs else 0))
                pass_ = _GroupPass(job, group, self._stores, self._local.workspace, runs, raw, base is None)
                pass_.read(self._advance, self._stopped, self._readers)
                finds += pass_.finish(self._advance, self._stopped)
                base = base or pass_.base
        return TensorFinds(base.facts() if base else None, tuple(finds))


class _GroupPass:
    """One tensor of the base and one group of experts."""

    def __init__(
        self,
        job: TensorJob,
        group: _Group,
        stores: Mapping[str, ByteStore],
        workspace: _Workspace,
        runs: Runs | None,
        raw: NDArray[np.uint8],
        first: bool,
    ) -> None:
        self._job, self._group, self._workspace = job, group, workspace
        self._elements = _base_elements(job, group.experts)
        sources = [Source(stores[job.source], job.tensor, self._elements)]
        sources += [Source(stores[e.source], e.tensor, e.elements) for e in group.experts]
        self._tiles = RawTiles(sources, group.span, group.keep, raw, group.slots)
        blocks = -(-job.tensor.elements // job.block)
        self.base = BaseTable(blocks) if job.blocks and first else None
        self._experts = [
            _Expert(job, e, blocks, room, group.working, workspace.loops)
            for e, room in zip(group.experts, group.rooms, strict=True)
        ]
        kinds = {tensor.dtype for tensor in (job.tensor, *(e.tensor for e in group.experts))}
        self._runs = runs if kinds == {"BF16"} else None
        self._by_runs = job.blocks and all(expert.counts_only for expert in self._experts)

    def read(self, advance: Callable[[int], None], stopped: threading.Event, readers: Executor) -> None:
        """The first look."""
        job = self._job
        runs = list(spans(self._elements, job.block, self._group.span))
        with closing(self._tiles.ahead(runs, readers)) as tiles:
            for (start, stop), raws in zip(runs, tiles, strict=True):
                if stopped.is_set():
                    return
                every = leaves(start, stop, job.tensor.elements, job.block)
                if self._runs is not None and self._by_runs:
                    while batch := list(islice(every, RUN)):
                        self._run(self._runs, batch, start, raws)
                else:
                    for leaf in every:
                        self._leaf(leaf, start, raws)
                advance(sum(raw.size for raw in raws))

    def finish(self, advance: Callable[[int], None], stopped: threading.Event) -> list[ExpertFinds]:
        """Second looks, and what was learnt."""
        for place, expert in enumerate(self._experts):
            expert.cut(self._look(place))
        self._look_between(advance, stopped)
        return [expert.finish() for expert in self._experts]

    def _look_between(self, advance: Callable[[int], None], stopped: threading.Event) -> None:
        """The second look at all experts of which sums between cuts are wanted."""
        job, tiles, workspace = self._job, self._tiles, self._workspace
        places = [place for place, expert in enumerate(self._experts, start=1) if expert.job.bands]
        covered = _covered([self._experts[place - 1].job for place in places])
        for start, stop in spans(covered, job.block, self._group.span):
            if stopped.is_set():
                return
            base, *raws = (tiles.raw(place, start, stop) for place in (0, *places))
            for leaf in leaves(start, stop, job.tensor.elements, job.block):
                values = workspace.base(_part(base, leaf, start, job.tensor), job.tensor)
                for place, stored in zip(places, raws, strict=True):
                    expert = self._experts[place - 1]
                    raw = _part(stored, leaf, start, expert.job.tensor)
                    if raw.size:
                        expert.feed_again(workspace.second(raw, expert.job.tensor, values, expert.compute))
            if not self._group.keep:
                advance(base.size + sum(raw.size for raw in raws))

    def _run(self, runs: Runs, batch: Sequence[Leaf], start: int, raws: Sequence[NDArray[np.uint8]]) -> None:
        """What `_leaf` does, for a few leaves at once."""
        job, workspace = self._job, self._workspace
        parts = [_part(raws[0], leaf, start, job.tensor) for leaf in batch]
        if self.base is not None:
            first = (batch[0].start - start) * job.tensor.storage.itemsize
            found = runs.base(raws[0][first:], np.array([leaf.stop - batch[0].start for leaf in batch]))
            finite = np.isfinite(found.largest).tolist()
            for leaf, part, square, largest, usable in zip(
                batch, parts, found.squares.tolist(), found.largest.tolist(), finite, strict=True
            ):
                if usable:
                    self.base.add(leaf, square, largest, 0, bytes_digest(memoryview(part)))
                else:
                    known = workspace.base_leaves.add(workspace.base(part, job.tensor))
                    self.base.add(leaf, known.square, known.largest, known.nonfinite, bytes_digest(memoryview(part)))
        for expert, stored in zip(self._experts, raws[1:], strict=True):
            covered = [leaf for leaf in batch if leaf.start < expert.job.elements]
            if covered:
                expert.feed_run(runs, covered, start, raws[0], stored, workspace)

    def _leaf(self, leaf: Leaf, start: int, raws: Sequence[NDArray[np.uint8]]) -> None:
        job, workspace = self._job, self._workspace
        raw = _part(raws[0], leaf, start, job.tensor)
        values = workspace.base(raw, job.tensor)
        known: BaseLeaf | None = None
        if job.blocks:
            known = workspace.base_leaves.add(values)
            if self.base is not None:
                self.base.add(leaf, known.square, known.largest, known.nonfinite, bytes_digest(memoryview(raw)))
        batch: list[_Expert] = []
        for expert, stored in zip(self._experts, raws[1:], strict=True):
            raw = _part(stored, leaf, start, expert.job.tensor)
            if not raw.size:
                continue
            products = None if known is None else workspace.batch.products(known.values)
            storage = expert.job.tensor.storage
            look = workspace.loops.leaf(raw, storage, values, expert.compute, expert.tally, products)
            expert.feed(leaf.start, look, workspace)
            if expert.table is not None:
                workspace.batch.add(look.largest, look.nonzero, look.nonfinite)
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
                        base = _part(raws[0], leaf, start, job.tensor)
                        raw = _part(raws[1], leaf, start, expert.job.tensor)
                        if self._runs is not None:
                            yield at, self._runs.sizes(raw, base)
                        else:
                            values = self._workspace.base(base, job.tensor)
                            yield at, self._workspace.second(raw, expert.job.tensor, values, expert.compute)

        return look


class _Expert:
    """What is being learnt of one expert tensor."""

    def __init__(self, job: TensorJob, expert: ExpertJob, blocks: int, room: int, working: int, loops: Loops) -> None:
        self.job = expert
        self.compute = _compute(job, expert)
        self.table = DeltaTable(blocks) if job.blocks else None
        total = job.tensor.elements
        self._cuts = Magnitudes(expert.elements, total, self.compute, room, working, loops) if expert.ranks else None
        self._found: tuple[MagnitudeCut, ...] = ()
        self._masked = MaskedL1Sums(expert.masks) if expert.masks else None
        self._ranked = [RankedMaskL1Sums(need, self.compute) for need in expert.ranked]
        self._banded: BandL1Sums | None = None

    @property
    def tally(self) -> Tally | None:
        return None if self._cuts is None else self._cuts.tally

    @property
    def counts_only(self) -> bool:
        """Whether nothing is wanted but block facts and cuts of a tensor that is not stored as a whole."""
        return self.tally is not None and self._masked is None and not self._ranked

    def feed_run(
        self,
        runs: Runs,
        batch: Sequence[Leaf],
        start: int,
        base: NDArray[np.uint8],
        stored: NDArray[np.uint8],
        workspace: _Workspace,
    ) -> None:
        """The next leaves of the first look, of spans that begin at element `start`."""
        assert self._cuts is not None
        assert self.tally is not None
        assert self.table is not None
        for leaf in batch:
            self.table.digest(leaf, bytes_digest(memoryview(_part(stored, leaf, start, self.job.tensor))))
        while batch:
            first = batch[0].start
            ends = np.array([min(leaf.stop, self.job.elements) - first for leaf in batch])
            sizes = np.diff(ends, prepend=0).tolist()
            at = (first - start) * self.job.tensor.storage.itemsize
            closes = self._cuts.closes(sizes)
            found = runs.delta(stored[at:], base[at:], ends, closes, self.tally.counts, self._cuts.totals)
            done, batch = batch[: found.leaves], batch[found.leaves :]
            self._cuts.counted_run(sizes[: found.leaves], found)
            if np.isfinite(found.largest).all():
                self.table.add_run(done, found, workspace.signs)
            else:
                for number, leaf in enumerate(done):
                    if np.isfinite(found.largest[number]):
                        self.table.add_run([leaf], found.only(number), workspace.signs)
                    else:
                        self.table.add(leaf, self._products(leaf, start, base, stored, workspace), 0)

    def _products(
        self,
        leaf: Leaf,
        start: int,
        base: NDArray[np.uint8],
        stored: NDArray[np.uint8],
        workspace: _Workspace,
    ) -> DeltaLeaves:
        """Facts of a leaf that is not all finite."""
        tensor = self.job.tensor
        values = workspace.base(_part(base, leaf, start, tensor), tensor)
        products = workspace.batch.products(workspace.base_leaves.add(values).values)
        raw = _part(stored, leaf, start, tensor)
        look = workspace.loops.leaf(raw, tensor.storage, values, self.compute, None, products)
        workspace.batch.add(look.largest, look.nonzero, look.nonfinite)
        return workspace.batch.finish(leaf.number)

    def feed(self, start: int, look: LeafLook, workspace: _Workspace) -> None:
        """The next leaf of the first look."""
        if self.tally is not None and self._cuts is not None:
            self._cuts.counted(look.delta.size, look.irregular)
        elif self._cuts is not None:
            self._cuts.stored(start, look.delta)
        if self._masked is None and not self._ranked:
            return
        sizes = workspace.sizes(look.delta)
        if self._masked is not None:
            self._masked.feed(sizes)
        for each in self._ranked:
            each.feed(sizes)

    def cut(self, look: magnitudes.Look) -> None:
        """Find the cuts, after the first look."""
        if self._cuts is not None:
            self._found = tuple(self._cuts.finish(look, self.job.ranks))
            self._cuts = None
        if self.job.bands:
            self._banded = BandL1Sums(self.job.bands, dict(zip(self.job.ranks, self._found, strict=True)))

    def feed_again(self, sizes: FloatArray) -> None:
        """The next leaf of the second look; only where there are bands, after `cut`."""
        assert self._banded is not None
        self._banded.feed(sizes)

    def finish(self) -> ExpertFinds:
        return ExpertFinds(
            blocks=None if self.table is None else self.table.facts(),
            sketch=None if self.table is None else self.table.sketch(),
            cuts=self._found,
            masked=() if self._masked is None else tuple(self._masked.facts()),
            ranked=tuple(each.fact() for each in self._ranked),
            banded=() if self._banded is None else tuple(self._banded.facts()),
        )


def _settle(batch: list[_Expert], leaf: Leaf, sums: DeltaBatch) -> None:
    """Add the sums of one leaf to the tables of the experts in the batch, and empty it."""
    if not batch:
        return
    found = sums.finish(leaf.number)
    for place, expert in enumerate(batch):
        if expert.table is not None:
            expert.table.add(leaf, found, place)
    batch.clear()


def _part(raw: NDArray[np.uint8], leaf: Leaf, start: int, tensor: TensorInfo) -> NDArray[np.uint8]:
    """The leaf's bytes of a span that begins at element `start`; shorter where the expert ends."""
    size = tensor.storage.itemsize
    return raw[(leaf.start - start) * size : (leaf.stop - start) * size]
