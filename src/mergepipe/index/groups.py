"""Facts of several experts together: base and experts of a tensor are streamed side by side, leaf by leaf.

A fact is a property of the tensors, not of how they are read: tiles are cut from the tensor's start, and
experts come in recipe order. Bytes are charged to INDEX; nothing is kept between runs yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.assembly import open_tensors
from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.dtypes import FloatArray, decode
from mergepipe.core.leaves import LEAF
from mergepipe.errors import MemoryLimitTooSmall, NonFiniteError, UsageError
from mergepipe.index.model import Pair, PairTensor, WantedGroup
from mergepipe.stats.contract import (
    GramNeed,
    GroupFact,
    GroupNeed,
    ImportanceNeed,
    OverlapNeed,
    VarianceMaskNeed,
    VectorGramNeed,
)
from mergepipe.stats.gram import ColumnGram, RowGram, gram_demand
from mergepipe.stats.group import Demand, Geometry, GroupStatistic, GroupTile
from mergepipe.stats.importance import Importance, importance_demand
from mergepipe.stats.overlap import Overlap, overlap_demand
from mergepipe.stats.variance import VarianceMask, variance_demand
from mergepipe.store.contract import Access, ByteStore, Purpose
from mergepipe.store.meter import Meter

# Elements read at once; tiles are cut out of such a run.
_RUN = 16 * LEAF


def group_cost(pairs: Sequence[Pair], wanted: Sequence[WantedGroup]) -> int:
    """Bytes that `gather` will read, all looks that are certain included."""
    total = 0
    for each in wanted:
        members = _members(pairs, each)
        once = len(members[0].base.extent)
        once += sum(member.elements * member.expert.storage.itemsize for member in members)
        total += once * _demand(each.need, _geometry(members), 0).looks
    return total


def gather(
    pairs: Sequence[Pair], wanted: Sequence[WantedGroup], meter: Meter, memory: int, allow_reads: bool
) -> Mapping[WantedGroup, GroupFact]:
    """Answer every need in one pass over its tensors. Raises `UsageError` if reading is not allowed."""
    if wanted and not allow_reads:
        raise UsageError(
            f"{wanted[0].tensor}: facts of all its experts would have to be read for ({group_cost(pairs, wanted):,} "
            "bytes in all), which --no-index-reads forbids"
        )
    stores: dict[str, ByteStore] = {}
    try:
        for pair in pairs:
            for model, source in ((pair.base, "base"), (pair.expert, pair.source)):
                if model.url not in stores:
                    stores[model.url] = open_tensors(model, meter, Purpose.INDEX, source, Access.SEQUENTIAL)
        return {each: _answer(pairs, each, stores, memory) for each in wanted}
    finally:
        for store in stores.values():
            store.close()


def _answer(pairs: Sequence[Pair], wanted: WantedGroup, stores: Mapping[str, ByteStore], memory: int) -> GroupFact:
    members = _members(pairs, wanted)
    base = members[0].base
    tensors = [base, *(member.expert for member in members)]
    geometry = _geometry(members)
    raws = sum(tensor.storage.itemsize for tensor in tensors)
    taken = _RUN * (raws + 8 * len(tensors))
    demand = _demand(wanted.need, geometry, memory - taken)
    run = max(_RUN, demand.unit) if demand.whole else _RUN
    needed = demand.bytes + run * (raws + 8 * len(tensors))
    if needed > memory:
        raise MemoryLimitTooSmall(f"facts of all experts of {wanted.tensor} together", needed, memory)
    statistic = _statistic(wanted.need, geometry, memory - taken)
    readers = [stores[pairs[wanted.pairs[0]].base.url], *(stores[pairs[n].expert.url] for n in wanted.pairs)]

    def look() -> Iterator[GroupTile]:
        return _tiles(members, readers, geometry, demand)

    for tile in look():
        if not all(np.isfinite(part).all() for part in (tile.base, *tile.deltas)):
            models = ", ".join(pairs[number].expert.ref for number in wanted.pairs)
            raise NonFiniteError(
                f"{wanted.tensor}: holds NaN or infinity in the base or in one of {models}; the facts that "
                "this method's coefficients follow from have no value: mend the model"
            )
        statistic.feed(tile)
    return statistic.finish(look)


def _geometry(members: Sequence[PairTensor]) -> Geometry:
    base = members[0].base
    wide = any(tensor.dtype == "F64" for tensor in (base, *(member.expert for member in members)))
    return Geometry(base.shape, len(members), np.dtype(np.float64 if wide else np.float32))


def _demand(need: GroupNeed, geometry: Geometry, memory: int) -> Demand:
    match need:
        case GramNeed() | VectorGramNeed():
            return gram_demand(need, geometry)
        case VarianceMaskNeed():
            return variance_demand(need, geometry, memory)
        case OverlapNeed():
            return overlap_demand(geometry)
        case ImportanceNeed():
            return importance_demand(need, geometry, memory)


def _statistic(need: GroupNeed, geometry: Geometry, memory: int) -> GroupStatistic:
    match need:
        case VectorGramNeed() if need.axis != -1:
            return ColumnGram(need, geometry)
        case GramNeed() | VectorGramNeed():
            return RowGram(need, geometry)
        case VarianceMaskNeed():
            return VarianceMask(need, geometry, memory)
        case OverlapNeed():
            return Overlap(need, geometry)
        case ImportanceNeed():
            return Importance(need, geometry, memory)


def _tiles(
    members: Sequence[PairTensor], readers: Sequence[ByteStore], geometry: Geometry, demand: Demand
) -> Iterator[GroupTile]:
    """Tiles of whole units up to a leaf; a larger unit in leaves counted from its start, or whole."""
    base = members[0].base
    for start, stop in _runs(geometry.elements, demand):
        own = _values(readers[0], base, start, stop, geometry)
        deltas = []
        for member, reader in zip(members, readers[1:], strict=True):
            covered = max(start, min(stop, member.elements))
            delta = np.zeros(stop - start, geometry.compute)
            mine = _values(reader, member.expert, start, covered, geometry)
            if "F64" in (base.dtype, member.expert.dtype):
                delta[: covered - start] = mine - own[: covered - start]
            else:  # a delta of two narrow inputs is their float32 difference, whoever else is merged
                delta[: covered - start] = mine.astype(np.float32) - own[: covered - start].astype(np.float32)
            deltas.append(delta)
        for a, b in _cuts(start, stop, demand):
            part = slice(a - start, b - start)
            yield GroupTile(a, own[part], [delta[part] for delta in deltas])


def _runs(elements: int, demand: Demand) -> Iterator[tuple[int, int]]:
    """What is read at once: whole units, or leaves of one unit."""
    unit = demand.unit
    if unit <= _RUN or demand.whole:
        stride = max(1, _RUN // unit) * unit
        for start in range(0, elements, stride):
            yield start, min(start + stride, elements)
        return
    for first in range(0, elements, unit):
        for start in range(first, first + unit, _RUN):
            yield start, min(start + _RUN, first + unit)


def _cuts(start: int, stop: int, demand: Demand) -> Iterator[tuple[int, int]]:
    unit = demand.unit
    if unit <= LEAF or demand.whole:
        stride = max(1, LEAF // unit) * unit
        for at in range(start, stop, stride):
            yield at, min(at + stride, stop)
        return
    at = start
    while at < stop:
        within = at % unit
        end = min(at + LEAF - within % LEAF, at - within + unit, stop)
        yield at, end
        at = end


def _values(store: ByteStore, tensor: TensorInfo, start: int, stop: int, geometry: Geometry) -> FloatArray:
    size = tensor.storage.itemsize
    raw: NDArray[np.uint8] = np.empty((stop - start) * size, np.uint8)
    if raw.size:
        store.read_into(tensor.extent.key, tensor.extent.start + start * size, memoryview(raw))
    return decode(raw, tensor.storage, np.empty(stop - start, geometry.compute))


def _members(pairs: Sequence[Pair], wanted: WantedGroup) -> list[PairTensor]:
    return [next(t for t in pairs[number].tensors if t.name == wanted.tensor) for number in wanted.pairs]
