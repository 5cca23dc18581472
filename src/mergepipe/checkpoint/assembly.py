"""Reading tensors that are assembled from rows of several stored ones, as runs of elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.assembled import Assembled, AssembledCheckpoint
from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.rows import Rows, pieces
from mergepipe.core.digest import bytes_digest
from mergepipe.core.dtypes import FloatArray, decode, encode
from mergepipe.core.leaves import LEAF
from mergepipe.store.contract import Access, ByteStore, Purpose, Version
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

Raw = NDArray[np.uint8]

# What one `fill` takes beside what it fills: stored bytes, the same for their digest, values, the rows given.
FILL_BYTES = 4 * LEAF * 8


class Assembler:
    """Fills runs of elements of assembled tensors from their stores, `stores[p]` for place p. Keeps no state."""

    def __init__(self, assembled: Assembled, stores: Sequence[ByteStore]) -> None:
        self._parts, self._stores = assembled, stores

    def fill(self, start: int, stop: int, wanted: Mapping[int, Raw]) -> dict[int, list[bytes]]:
        """Elements `[start, stop)` of every place in `wanted`, each into its array of the presented dtype's bytes.

        Reads every stored element these need once, a leaf at a time. Returns, by place, the digests of the stored
        bytes read of each leaf counted from `start`, in the order of rows: own rows first, then those given.
        """
        digests: dict[int, list[bytes]] = {place: [] for place in range(len(self._stores))}
        for first in range(start, stop, LEAF):
            end = min(first + LEAF, stop)
            views = {}
            for place, out in wanted.items():
                size = self._parts.kind(place).itemsize
                views[place] = out[(first - start) * size : (end - start) * size]
            for place, digest in enumerate(self._leaf(first, end, views)):
                digests[place].append(digest)
        return digests

    def _leaf(self, start: int, stop: int, wanted: Mapping[int, Raw]) -> list[bytes]:
        parts, row = self._parts, self._parts.row
        table = parts.table
        first, last = start // row, -(-stop // row)
        own, given = table.own[:, first:last], table.given[:, first:last]
        lacking = np.zeros(last - first, np.bool_)
        for place in wanted:
            lacking |= own[place] < 0
        # Adding to −0 keeps every bit, the sign of a zero too.
        shared = np.full(stop - start, -0.0, self._compute())
        digests = []
        for place in range(len(self._stores)):
            read: list[Raw] = []
            if place in wanted:
                read += self._own(place, own[place], first, start, stop, wanted[place])
            needed = np.where(lacking, given[place], -1)
            if (needed >= 0).any():
                mine = own[place] if place in wanted else np.full_like(own[place], -1)
                read += self._give(place, needed, mine, first, start, stop, wanted.get(place), shared)
            digests.append(bytes_digest(memoryview(np.concatenate(read)) if read else b""))
        self._settle(first, start, stop, lacking, shared)
        for place, out in wanted.items():
            self._complete(place, own[place], first, start, stop, shared, out)
        return digests

    def _compute(self) -> np.dtype[np.floating]:
        wide = any(tensor.dtype == "F64" for tensor in self._parts.tensors)
        return np.dtype(np.float64 if wide else np.float32)

    def _read(self, place: int, source: int, into: Raw) -> Raw:
        tensor = self._parts.tensors[place]
        extent = tensor.extent
        self._stores[place].read_into(extent.key, extent.start + source * tensor.storage.itemsize, memoryview(into))
        return into

    def _own(self, place: int, rows: Rows, first: int, start: int, stop: int, out: Raw) -> list[Raw]:
        """Own rows into `out`; returns the stored bytes, in order."""
        tensor, kind = self._parts.tensors[place], self._parts.kind(place)
        read = []
        for at, count, source in pieces(rows, first, start, stop, self._parts.row):
            target = out[at * kind.itemsize : (at + count) * kind.itemsize]
            if tensor.dtype == kind.code:
                read.append(self._read(place, source, target))
                continue
            piece = self._read(place, source, np.empty(count * tensor.storage.itemsize, np.uint8))
            encode(decode(piece, tensor.storage, np.empty(count, kind.compute)), kind, target)
            read.append(piece)
        return read

    def _give(
        self,
        place: int,
        needed: Rows,
        mine: Rows,
        first: int,
        start: int,
        stop: int,
        out: Raw | None,
        shared: FloatArray,
    ) -> list[Raw]:
        """Add the rows that a place gives to `shared`; those in `out` already are taken from there."""
        tensor, kind = self._parts.tensors[place], self._parts.kind(place)
        row = self._parts.row
        read = []
        if out is not None:
            for at, count, _ in pieces(np.where(needed == mine, needed, -1), first, start, stop, row):
                there = out[at * kind.itemsize : (at + count) * kind.itemsize]
                shared[at : at + count] += decode(there, kind, np.empty(count, shared.dtype))
        for at, count, source in pieces(np.where(needed == mine, -1, needed), first, start, stop, row):
            piece = self._read(place, source, np.empty(count * tensor.storage.itemsize, np.uint8))
            shared[at : at + count] += decode(piece, tensor.storage, np.empty(count, shared.dtype))
            read.append(piece)
        return read

    def _settle(self, first: int, start: int, stop: int, lacking: NDArray[np.bool_], shared: FloatArray) -> None:
        """Sums to means; zeros where nobody gives."""
        row, givers = self._parts.row, self._parts.table.givers
        for place in np.flatnonzero(lacking):
            number = int(givers[first + place])
            begin = (first + int(place)) * row
            span = slice(max(start, begin) - start, min(stop, begin + row) - start)
            if number == 0:
                shared[span] = 0.0
            elif number > 1:
                shared[span] /= shared.dtype.type(number)

    def _complete(
        self, place: int, rows: Rows, first: int, start: int, stop: int, shared: FloatArray, out: Raw
    ) -> None:
        """Rows of a place that are not its own."""
        kind, row, filled = self._parts.kind(place), self._parts.row, self._parts.table.map.filled
        for number in np.flatnonzero(rows < 0):
            begin = (first + int(number)) * row
            low, high = max(start, begin), min(stop, begin + row)
            values = shared[low - start : high - start]
            if first + int(number) >= filled and self._parts.padding:
                values = self._parts.padding[place][low - begin : high - begin].astype(shared.dtype)
            encode(values, kind, out[(low - start) * kind.itemsize : (high - start) * kind.itemsize])


def open_tensors(
    checkpoint: Checkpoint, meter: Meter, purpose: Purpose, source: str, access: Access = Access.RANGED
) -> ByteStore:
    """The store of a checkpoint's tensors, stored or assembled; metered as `open_store` does."""
    if not isinstance(checkpoint, AssembledCheckpoint):
        return open_store(checkpoint.url, meter, purpose, source, access)
    stores = {
        number: open_store(model.url, meter, purpose, model.ref, access) for number, model in checkpoint.sources.items()
    }
    return _AssembledStore(checkpoint, stores)


class _AssembledStore:
    """Presents assembled tensors as files, one a tensor."""

    def __init__(self, checkpoint: AssembledCheckpoint, stores: Mapping[int, ByteStore]) -> None:
        self._checkpoint, self._stores = checkpoint, stores

    def version(self, key: str) -> Version:
        assembled, place = self._checkpoint.parts[key]
        return Version(assembled.elements * assembled.kind(place).itemsize, 0, 0, 0)

    def read_into(self, key: str, start: int, out: memoryview) -> None:
        assembled, place = self._checkpoint.parts[key]
        size = assembled.kind(place).itemsize
        first = start // size
        Assembler(assembled, [self._stores[model] for model in assembled.models]).fill(
            first, first + len(out) // size, {place: np.frombuffer(out, np.uint8)}
        )

    def keys(self) -> tuple[str, ...]:
        return tuple(sorted(self._checkpoint.parts))

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
