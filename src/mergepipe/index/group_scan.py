"""One job: a fact of a base tensor and of several experts' together, streamed side by side past a statistic.

What is found depends on the tensors' bytes only: tiles are cut from a tensor's start, however much of it is read at
once, and experts come in the job's order. Jobs run on a few threads, each within its share of the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.digest import ChainDigest
from mergepipe.core.dtypes import FloatArray, decode
from mergepipe.core.leaves import LEAF
from mergepipe.errors import MemoryLimitTooSmall, NonFiniteError
from mergepipe.index.group_needs import demand_of, statistic_of
from mergepipe.index.tiles import Raw, RawTiles, Source, raw_bytes
from mergepipe.index.workers import on_threads
from mergepipe.stats.contract import GroupFact, GroupNeed
from mergepipe.stats.group import Demand, Geometry, GroupTile
from mergepipe.store.contract import ByteStore

# Elements read at once where memory allows; at least a tile is.
_RUN: Final = 16 * LEAF
# Bytes read at once to be hashed only.
_HASHED: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """The first `elements` elements of a tensor of the model `ref`, whose store's key is `source`."""

    source: str
    ref: str
    tensor: TensorInfo
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * self.tensor.storage.itemsize


@dataclass(frozen=True, slots=True)
class GroupJob:
    """A need of the whole tensor `base` and of the experts' in order; where one ends early its delta is zero."""

    need: GroupNeed
    base: Part
    experts: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.base, *self.experts

    @property
    def bytes(self) -> int:
        """Of one look."""
        return sum(part.bytes for part in self.parts)

    @property
    def geometry(self) -> Geometry:
        wide = any(part.tensor.dtype == "F64" for part in self.parts)
        return Geometry(self.base.tensor.shape, len(self.experts), np.dtype(np.float64 if wide else np.float32))


@dataclass(frozen=True, slots=True)
class GroupFinds:
    """What was learnt in one job; `digests` are of the parts' bytes, the base's first."""

    fact: GroupFact
    digests: tuple[str, ...]


def scan_groups(
    jobs: Sequence[GroupJob],
    stores: Mapping[str, ByteStore],
    memory: int,
    threads: int,
    advance: Callable[[int], None],
) -> list[GroupFinds]:
    """Run all jobs within `memory` bytes of buffers; `advance` is told bytes as they are worked through.

    Raises `MemoryLimitTooSmall` before anything is read, and `NonFiniteError`.
    """
    share = _share(jobs, memory, threads)
    stopped = threading.Event()

    def run(job: GroupJob) -> GroupFinds:
        # Overflow is met in the look for values that are not finite.
        with np.errstate(all="ignore"):
            return _Pass(job, _arrange(job, share), stores, advance, stopped).finds()

    sizes = [job.bytes for job in jobs]
    return on_threads(run, jobs, sizes, max(1, min(threads, len(jobs), memory // max(1, share))), stopped.set)


def foreseen_bytes(jobs: Sequence[GroupJob], memory: int, threads: int) -> list[int]:
    """Bytes that each job reads, all looks that are certain included. Raises `MemoryLimitTooSmall`."""
    share = _share(jobs, memory, threads)
    return [_foreseen(job, _arrange(job, share)) for job in jobs]


def scan_part_digests(
    parts: Sequence[Part], stores: Mapping[str, ByteStore], memory: int, threads: int, advance: Callable[[int], None]
) -> list[str]:
    """The digest of each part's bytes, as `GroupFinds` has it."""
    stopped = threading.Event()

    def run(part: Part) -> str:
        extent, digest = part.tensor.extent, ChainDigest()
        room = np.empty(min(part.bytes, _HASHED), np.uint8)
        for start in range(0, part.bytes, _HASHED):
            _require_going(stopped)
            raw = memoryview(room[: min(_HASHED, part.bytes - start)])
            stores[part.source].read_into(extent.key, extent.start + start, raw)
            digest.feed(raw)
            advance(len(raw))
        return digest.text()

    workers = max(1, min(threads, len(parts), memory // _HASHED))
    return on_threads(run, parts, [part.bytes for part in parts], workers, stopped.set)


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """How a job spends its memory: whether all that is read is kept, how many elements are read at once, all bytes."""

    demand: Demand
    keep: bool
    run: int
    bytes: int


def _share(jobs: Sequence[GroupJob], memory: int, threads: int) -> int:
    """Bytes each worker may take, of as many workers as all jobs allow."""
    least = 1
    for job in jobs:
        needed = _arrange_least(job).bytes
        if needed > memory:
            raise MemoryLimitTooSmall(f"facts of all experts of {job.base.tensor.name} together", needed, memory)
        least = max(least, needed)
    return memory // max(1, min(threads, len(jobs), memory // least))


def _arrange(job: GroupJob, memory: int) -> _Arrangement:
    """Keep what is looked at again if there is room, then count in as much as helps, then read as much at once."""
    arranged = _arrange_least(job)
    if arranged.demand.most > 1:
        kept = _arranged(job, True, arranged.run, memory)
        arranged = kept if kept.bytes <= memory else arranged
    larger = _arranged(job, arranged.keep, arranged.run, memory)
    # What a statistic counts in spares looks at the files, which larger reads do not.
    while larger.bytes <= memory and larger.demand.bytes >= arranged.demand.bytes:
        arranged = larger
        if 2 * arranged.run > _RUN or arranged.run >= job.base.elements:
            break
        larger = _arranged(job, arranged.keep, 2 * arranged.run, memory)
    return arranged


def _arrange_least(job: GroupJob) -> _Arrangement:
    demand = demand_of(job.need, job.geometry, 0)
    return _arranged(job, False, _tile(demand), 0)


def _arranged(job: GroupJob, keep: bool, run: int, memory: int) -> _Arrangement:
    taken = _read_bytes(job, keep, run)
    demand = demand_of(job.need, job.geometry, memory - taken)
    return _Arrangement(demand, keep, run, demand.bytes + taken)


def _read_bytes(job: GroupJob, keep: bool, run: int) -> int:
    """Stored bytes; values of base, deltas and one expert, of one the base in float32; a flag each."""
    held = raw_bytes([(part.elements, part.tensor.storage.itemsize) for part in job.parts], run, keep)
    size = min(run, job.base.elements)
    return held + size * (job.geometry.compute.itemsize * (len(job.experts) + 2) + 4 + 1)


def _foreseen(job: GroupJob, arranged: _Arrangement) -> int:
    return job.bytes * (1 if arranged.keep else arranged.demand.looks)


def _tile(demand: Demand) -> int:
    """Elements of the largest tile: whole units up to a leaf, a leaf of a larger unit, or that unit."""
    if demand.unit <= LEAF or demand.whole:
        return max(1, LEAF // demand.unit) * demand.unit
    return LEAF


def _require_going(stopped: threading.Event) -> None:
    if stopped.is_set():
        raise _Stopped


class _Stopped(Exception):
    """Another job failed, or the run was interrupted; this is not what is told of it."""


class _Pass:
    """One job at work."""

    def __init__(
        self,
        job: GroupJob,
        arranged: _Arrangement,
        stores: Mapping[str, ByteStore],
        advance: Callable[[int], None],
        stopped: threading.Event,
    ) -> None:
        self._job, self._arranged, self._advance, self._stopped = job, arranged, advance, stopped
        self._geometry = job.geometry
        self._left = _foreseen(job, arranged)
        # What demand was made with is what the statistic may take.
        self._statistic = statistic_of(
            job.need, self._geometry, arranged.bytes - _read_bytes(job, arranged.keep, arranged.run)
        )
        sources = [Source(stores[part.source], part.tensor, part.elements) for part in job.parts]
        held = raw_bytes([(s.elements, s.itemsize) for s in sources], arranged.run, arranged.keep)
        self._raws = RawTiles(sources, arranged.run, arranged.keep, np.empty(held, np.uint8))
        size, compute = min(arranged.run, job.base.elements), self._geometry.compute
        self._base = np.empty(size, compute)
        self._narrow_base = np.empty(size, np.float32)
        self._expert = np.empty(size, compute)
        self._deltas = [np.empty(size, compute) for _ in job.experts]

    def finds(self) -> GroupFinds:
        digests = [ChainDigest() for _ in self._job.parts]
        for tile in self._tiles(digests):
            if not all(np.isfinite(part).all() for part in (tile.base, *tile.deltas)):
                models = ", ".join(part.ref for part in self._job.experts)
                raise NonFiniteError(
                    f"{self._job.base.tensor.name}: holds NaN or infinity in the base or in one of {models}; the "
                    "facts that this method's coefficients follow from have no value: mend the model"
                )
            self._statistic.feed(tile)
        fact = self._statistic.finish(lambda: self._tiles(()))
        self._advance(self._left)
        return GroupFinds(fact, tuple(digest.text() for digest in digests))

    def _tiles(self, digests: Sequence[ChainDigest]) -> Iterator[GroupTile]:
        """All tiles in order; what is read is fed to the parts' digests, if there are any."""
        for start, stop in self._runs():
            _require_going(self._stopped)
            raws = [self._raws.raw(place, start, stop) for place in range(len(self._job.parts))]
            for digest, raw in zip(digests, raws, strict=False):
                digest.feed(memoryview(raw))
            told = min(self._left, sum(raw.size for raw in raws))
            self._left -= told
            self._advance(told)
            base, deltas = self._values(raws, stop - start)
            for a, b in self._cuts(start, stop):
                part = slice(a - start, b - start)
                yield GroupTile(a, base[part], [delta[part] for delta in deltas])

    def _values(self, raws: Sequence[Raw], count: int) -> tuple[FloatArray, list[FloatArray]]:
        """The base and the deltas of a run; zeros beyond an expert's end."""
        own, *others = self._job.parts
        base = decode(raws[0], own.tensor.storage, self._base[:count])
        narrow = base
        if base.dtype != np.float32 and own.tensor.dtype != "F64":
            narrow = decode(raws[0], own.tensor.storage, self._narrow_base[:count])
        deltas: list[FloatArray] = []
        for part, raw, room in zip(others, raws[1:], self._deltas, strict=True):
            # A delta of two narrow inputs is their float32 difference, whoever else is merged.
            before = base if "F64" in (own.tensor.dtype, part.tensor.dtype) else narrow
            covered = raw.size // part.tensor.storage.itemsize
            expert = decode(raw, part.tensor.storage, self._expert.view(before.dtype)[:covered])
            np.subtract(expert, before[:covered], out=expert)
            delta = room[:count]
            np.copyto(delta[:covered], expert)
            delta[covered:] = 0.0
            deltas.append(delta)
        return base, deltas

    def _runs(self) -> Iterator[tuple[int, int]]:
        """What is read at once: whole tiles, of one unit where that is larger than they are."""
        elements, unit = self._job.base.elements, self._arranged.demand.unit
        if _tile(self._arranged.demand) % unit == 0:
            unit = elements
        for first in range(0, elements, unit):
            end = min(first + unit, elements)
            for start in range(first, end, self._arranged.run):
                yield start, min(start + self._arranged.run, end)

    def _cuts(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        tile = _tile(self._arranged.demand)
        for at in range(start, stop, tile):
            yield at, min(at + tile, stop)
