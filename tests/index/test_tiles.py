from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.checkpoint.model import TensorInfo
from mergepipe.core.extents import PAGE, Extent
from mergepipe.core.leaves import LEAF
from mergepipe.errors import SourceError
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


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
def test_reading_ahead_gives_the_same_bytes(keep: bool, slots: int) -> None:
    """Every span of every source in order, each byte read once; what is held afterwards is known."""
    shop = Shop()
    size = raw_bytes([(s.elements, s.itemsize) for s in shop.sources], 100, keep, slots)
    tiles = RawTiles(shop.sources, 100, keep, np.empty(size, np.uint8), slots)
    runs = [(0, 100), (100, 180), (180, 280), (280, 300)]
    with ThreadPoolExecutor(4) as readers, closing(tiles.ahead(runs, readers)) as found:
        for (start, stop), raws in zip(runs, found, strict=True):
            assert raws[0].tobytes() == CONTENT[10 + 2 * start : 10 + 2 * stop]
            assert raws[1].tobytes() == CONTENT[610 + 4 * start : 610 + 4 * min(stop, 40)]
    assert shop.spent == 600 + 160
    assert tiles.raw(0, 290, 300).tobytes() == CONTENT[590:610]
    assert shop.spent == 760
    assert tiles.raw(1, 10, 60).tobytes() == CONTENT[650:770]


def test_a_failed_read_is_raised_when_no_other_is_under_way() -> None:
    """The memory may be given to others at once: reads that were begun have ended."""
    running: list[int] = []
    lock = threading.Lock()

    class Failing(MemoryStore):
        """Fails from byte 400 on."""

        def read_into(self, key: str, start: int, out: memoryview) -> None:
            with lock:
                running.append(start)
            try:
                if start == 410:
                    raise SourceError("gone")
                super().read_into(key, start, out)
            finally:
                with lock:
                    running.remove(start)

    source = Source(Failing({"file": CONTENT}), TensorInfo("a", "BF16", (300,), Extent("file", 10, 610)), 300)
    tiles = RawTiles([source, source], 100, False, np.empty(raw_bytes([(300, 2)] * 2, 100, False, 2), np.uint8), 2)
    with ThreadPoolExecutor(4) as readers:
        with pytest.raises(SourceError, match="gone"):
            list(tiles.ahead([(0, 100), (100, 200), (200, 300)], readers))
        assert running == []


@pytest.mark.parametrize("keep", [False, True])
def test_bytes_lie_in_their_page_as_in_the_file(keep: bool) -> None:
    """What direct reads need to do without a copy; not where elements would not be aligned."""
    store = MemoryStore({"file": bytes(4 * PAGE)})
    for begin, expected in ((200, 200), (PAGE + 8, 8), (202, 0)):
        source = Source(store, TensorInfo("a", "BF16", (3000,), Extent("file", begin, begin + 6000)), 3000)
        tiles = RawTiles([source], 3000, keep, np.empty(raw_bytes([(3000, 2)], 3000, keep), np.uint8))
        assert tiles.raw(0, 0, 3000).ctypes.data % PAGE == expected
