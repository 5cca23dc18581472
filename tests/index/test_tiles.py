from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.extents import Extent
from mergepipe.core.leaves import LEAF
from mergepipe.index.tiles import RawTiles, Source, leaves, raw_bytes, spans
from mergepipe.store.contract import Purpose
from mergepipe.store.memory import MemoryStore
from mergepipe.store.meter import Meter, MeteredStore

CONTENT = bytes(range(256)) * 4


@given(
    elements=st.integers(1, 3 * LEAF),
    block=st.integers(1, 4 * LEAF),
    most=st.sampled_from([LEAF, LEAF + 5, 3 * LEAF, 10 * LEAF]),
)
def test_spans_and_their_leaves_partition_a_tensor(elements: int, block: int, most: int) -> None:
    """Spans follow each other without gap and fit the buffer; leaves lie where each block's leaves are."""
    block = max(block, elements // 500)
    found = list(spans(elements, block, most))
    assert found[0][0] == 0
    assert found[-1][1] == elements
    assert all(a[1] == b[0] for a, b in pairwise(found))
    assert all(0 < stop - start <= most for start, stop in found)
    parts = [leaf for start, stop in found for leaf in leaves(start, stop, elements, block)]
    assert [leaf.start for leaf in parts] == [0, *(leaf.stop for leaf in parts[:-1])]
    for leaf in parts:
        end = min((leaf.block + 1) * block, elements)
        assert leaf.start == leaf.block * block + leaf.number * LEAF
        assert leaf.stop == min(leaf.start + LEAF, end)
        assert leaf.last == (leaf.stop == end)


class Shop:
    """A metered file of 1,024 bytes that holds two tensors: 300 bf16 and 50 float32."""

    def __init__(self) -> None:
        self.meter = Meter()
        store = MeteredStore(MemoryStore({"file": CONTENT}), self.meter, Purpose.INDEX, "x")
        self.sources = [
            Source(store, TensorInfo("a", "BF16", (300,), Extent("file", 10, 610)), 300),
            Source(store, TensorInfo("b", "F32", (50,), Extent("file", 610, 810)), 40),
        ]

    def tiles(self, most: int, keep: bool) -> RawTiles:
        """With exactly the memory asked for."""
        size = raw_bytes([(s.elements, s.itemsize) for s in self.sources], most, keep)
        return RawTiles(self.sources, most, keep, np.empty(size, np.uint8))

    @property
    def spent(self) -> int:
        """Bytes read so far."""
        return self.meter.spent().bytes[Purpose.INDEX]


@pytest.mark.parametrize("keep", [False, True])
def test_tiles_are_the_stored_bytes(keep: bool) -> None:
    """A span's bytes, clipped to the elements of interest; nothing beyond them."""
    tiles = Shop().tiles(100, keep)
    assert tiles.raw(0, 0, 100).tobytes() == CONTENT[10:210]
    assert tiles.raw(1, 0, 100).tobytes() == CONTENT[610:770]
    assert tiles.raw(0, 250, 300).tobytes() == CONTENT[510:610]
    assert tiles.raw(1, 40, 60).size == 0
    assert tiles.raw(0, 20, 30).tobytes() == CONTENT[50:70]


def test_what_is_kept_is_read_once() -> None:
    """With `keep` each byte is read once, in whatever pieces it is asked for."""
    shop = Shop()
    tiles = shop.tiles(100, True)
    for start in range(0, 300, 100):
        tiles.raw(0, start, start + 100)
    for start in range(0, 300, 10):
        assert tiles.raw(0, start, start + 10).tobytes() == CONTENT[10 + 2 * start : 30 + 2 * start]
    assert shop.spent == 600


def test_the_last_span_is_not_read_again() -> None:
    """Without `keep` parts of the span read last cost nothing; others are read again."""
    shop = Shop()
    tiles = shop.tiles(100, False)
    tiles.raw(0, 100, 200)
    assert tiles.raw(0, 120, 200).tobytes() == CONTENT[250:410]
    assert shop.spent == 200
    assert tiles.raw(0, 90, 110).tobytes() == CONTENT[190:230]
    assert shop.spent == 240
