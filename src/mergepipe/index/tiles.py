"""Stored bytes of a base tensor and of its experts', span by span, through metered stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.leaves import LEAF
from mergepipe.store.contract import ByteStore

Raw = NDArray[np.uint8]
_ALIGNED: Final = 64


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


def raw_bytes(tensors: Sequence[tuple[int, int]], most: int, keep: bool) -> int:
    """Bytes of memory `RawTiles` needs for tensors of (elements, item size)."""
    return sum(_held(elements, itemsize, most, keep) for elements, itemsize in tensors)


def _held(elements: int, itemsize: int, most: int, keep: bool) -> int:
    size = (elements if keep else min(most, elements)) * itemsize
    return -(-size // _ALIGNED) * _ALIGNED


class RawTiles:
    """Bytes of several tensors by spans of elements, in `memory`, whose size `raw_bytes` tells.

    With `keep` everything read is kept, and reading it again costs nothing; else there is room for a
    span of `most` elements a source, and a span is overwritten by the next of that source.
    """

    def __init__(self, sources: Sequence[Source], most: int, keep: bool, memory: Raw) -> None:
        self._sources = sources
        self._keep = keep
        ends = list(accumulate((_held(s.elements, s.itemsize, most, keep) for s in sources), initial=0))
        self._buffers = [memory[start:end] for start, end in pairwise(ends)]
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
