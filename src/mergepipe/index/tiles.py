"""Stored bytes of a base tensor and of its experts', span by span, through metered stores."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.extents import PAGE
from mergepipe.core.leaves import LEAF
from mergepipe.store.contract import ByteStore

Raw = NDArray[np.uint8]
_ALIGNED: Final = 8  # bytes of the widest element


@dataclass(frozen=True, slots=True)
class Leaf:
    """Elements `[start, stop)` of a tensor: leaf `number` of block `block`, which ends at `stop` if `last`."""

    block: int
    number: int
    start: int
    stop: int
    last: bool


@dataclass(frozen=True, slots=True)
class Source:
    """Where one tensor's bytes are; only its first `elements` elements are of interest."""

    store: ByteStore
    tensor: TensorInfo
    elements: int

    @property
    def itemsize(self) -> int:
        return self.tensor.storage.itemsize


def spans(elements: int, block: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut a tensor into runs of at most `most` elements (at least a leaf) at the ends of blocks or of their leaves."""
    if block <= most:
        step = most // block * block
        for start in range(0, elements, step):
            yield start, min(start + step, elements)
        return
    step = max(1, most // LEAF) * LEAF
    for first in range(0, elements, block):
        end = min(first + block, elements)
        for start in range(first, end, step):
            yield start, min(start + step, end)


def leaves(start: int, stop: int, elements: int, block: int) -> Iterator[Leaf]:
    """The leaves in a span that `spans` made of a tensor of `elements` elements."""
    while start < stop:
        number = start // block
        first, end = number * block, min((number + 1) * block, elements)
        after = min(start + LEAF, end)
        yield Leaf(number, (start - first) // LEAF, start, after, after == end)
        start = after


def raw_bytes(tensors: Sequence[tuple[int, int]], most: int, keep: bool, slots: int = 1) -> int:
    """Bytes of memory `RawTiles` needs for tensors of (elements, item size)."""
    return PAGE + sum(_room(elements, itemsize, most, keep, slots) for elements, itemsize in tensors)


def _room(elements: int, itemsize: int, most: int, keep: bool, slots: int) -> int:
    return _slot_bytes(elements * itemsize) if keep else slots * _slot_bytes(min(most, elements) * itemsize)


def _slot_bytes(size: int) -> int:
    """Whole pages in which `size` bytes find room, wherever in a page they begin."""
    return (-(-size // PAGE) + 1) * PAGE


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """The bytes of elements `[start, stop)` of a tensor; `raw` may be longer."""

    start: int
    stop: int
    raw: Raw

    def part(self, start: int, stop: int, itemsize: int) -> Raw:
        return self.raw[(start - self.start) * itemsize : (stop - self.start) * itemsize]


class RawTiles:
    """Bytes of several tensors by spans of elements, in `memory`, whose size `raw_bytes` tells.

    With `keep` everything read is kept, and reading it again costs nothing; else there is room for `slots`
    spans of `most` elements a source, which take turns. Bytes lie as far into a page as they do in their
    file, so that they can be read straight to their place.
    """

    def __init__(self, sources: Sequence[Source], most: int, keep: bool, memory: Raw, slots: int = 1) -> None:
        self._sources = sources
        self._keep = keep
        self._slots = 2 if keep else slots  # in what is kept there is room for the next span anyway
        first = -memory.ctypes.data % PAGE
        rooms = (_room(s.elements, s.itemsize, most, keep, slots) for s in sources)
        rests = [memory[start:end] for start, end in pairwise(accumulate(rooms, initial=first))]
        self._memory = [np.split(rest, 1 if keep else slots) for rest in rests]
        self._have = [_Held(0, 0, self._window(place, 0, 0)) for place in range(len(sources))]

    def raw(self, place: int, start: int, stop: int) -> Raw:
        """The stored bytes of elements `[start, stop)` of a source, as far as they are of interest."""
        source, have = self._sources[place], self._have[place]
        stop = min(stop, source.elements)
        if start >= stop:
            return have.raw[:0]
        if self._keep and stop > have.stop:
            self._have[place] = have = self._filled(place, have.stop, stop, 0)
        elif not self._keep and (start < have.start or stop > have.stop):
            self._have[place] = have = self._filled(place, start, stop, 0)
        return have.part(start, stop, source.itemsize)

    def ahead(self, spans: Sequence[tuple[int, int]], readers: Executor) -> Generator[list[Raw], None, None]:
        """`raw` of all sources for each of `spans`, which follow each other from element 0.

        While one is worked on, `readers` read the next if there is a slot for it. Close the iterator before the
        memory is used otherwise.
        """
        coming: deque[list[Future[_Held]]] = deque()
        begun = 0
        try:
            for start, stop in spans:
                while begun < len(spans) and len(coming) < self._slots:
                    coming.append(self._begin(*spans[begun], begun % self._slots, readers))
                    begun += 1
                self._have = [future.result() for future in coming[0]]
                coming.popleft()
                yield [self.raw(place, start, stop) for place in range(len(self._sources))]
        finally:
            reads = [future for span in coming for future in span]
            for future in reads:
                future.cancel()
            wait(reads)

    def _begin(self, start: int, stop: int, slot: int, readers: Executor) -> list[Future[_Held]]:
        return [readers.submit(self._filled, place, start, stop, slot) for place in range(len(self._sources))]

    def _filled(self, place: int, start: int, stop: int, slot: int) -> _Held:
        """Read elements `[start, stop)` into a slot; of what is kept all before them has been read."""
        source = self._sources[place]
        stop = min(stop, source.elements)
        held = (
            _Held(0, stop, self._window(place, 0, 0))
            if self._keep
            else _Held(start, stop, self._window(place, start, slot))
        )
        if start < stop:
            extent = source.tensor.extent
            into = held.part(start, stop, source.itemsize)
            source.store.read_into(extent.key, extent.start + start * source.itemsize, memoryview(into))
        return held

    def _window(self, place: int, start: int, slot: int) -> Raw:
        """A slot from where the bytes from element `start` on belong: at its beginning if not aligned in the file."""
        source = self._sources[place]
        shift = (source.tensor.extent.start + start * source.itemsize) % PAGE
        return self._memory[place][slot][0 if shift % _ALIGNED else shift :]
