"""Stored bytes of a base tensor and of its experts', span by span, through metered stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.leaves import LEAF
from mergepipe.store.contract import ByteStore

Raw = NDArray[np.uint8]


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


class RawTiles:
    """Bytes of several tensors by spans of elements.

    With `keep` everything read is kept, and reading it again costs nothing; else there is room for a
    span of `most` elements a source, and a span is overwritten by the next of that source.
    """

    def __init__(self, sources: Sequence[Source], most: int, keep: bool) -> None:
        self._sources = sources
        self._keep = keep
        sizes = [(s.elements if keep else min(most, s.elements)) * s.itemsize for s in sources]
        self._buffers = [np.empty(size, np.uint8) for size in sizes]
        self._have = [(0, 0)] * len(sources)

    def raw(self, place: int, start: int, stop: int) -> Raw:
        """The stored bytes of elements `[start, stop)` of a source, as far as they are of interest."""
        source, buffer = self._sources[place], self._buffers[place]
        stop = min(stop, source.elements)
        if start >= stop:
            return buffer[:0]
        size = source.itemsize
        first, end = self._have[place]
        if self._keep:
            if stop > end:
                self._read(source, end, buffer[end * size : stop * size])
                self._have[place] = (0, stop)
            return buffer[start * size : stop * size]
        if start < first or stop > end:
            self._read(source, start, buffer[: (stop - start) * size])
            self._have[place] = first, _ = start, stop
        return buffer[(start - first) * size : (stop - first) * size]

    def _read(self, source: Source, start: int, into: Raw) -> None:
        extent = source.tensor.extent
        source.store.read_into(extent.key, extent.start + start * source.itemsize, memoryview(into))
