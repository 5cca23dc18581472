"""Order statistics of values that are computed from several deltas, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mergepipe.core.dtypes import FloatArray
from mergepipe.stats import magnitudes
from mergepipe.stats.group import Geometry, GroupLook, GroupTile

# Nearly all patterns of computed values are irregular, and are kept where there is room.
_MOST_ROOM: Final = 128 << 20


def counting_room(geometry: Geometry, memory: int) -> tuple[int, int]:
    """`room` and `working` for the `Magnitudes` of a tensor's values: for all of them, or the least."""
    elements = geometry.elements
    room = magnitudes.useful_room(elements, geometry.compute) + elements * geometry.compute.itemsize
    working = magnitudes.useful_working(elements)
    if room > _MOST_ROOM or room + working > memory:
        return 0, magnitudes.LEAST_WORKING
    return room, working


def values_again(look: GroupLook, values: Callable[[GroupTile], FloatArray]) -> magnitudes.Look:
    """Values of the spans that are asked for, computed in a look at the whole tensor."""

    def again(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, FloatArray]]:
        at = 0
        for tile in look():
            end = tile.start + tile.base.size
            while at < len(spans) and spans[at][1] <= tile.start:
                at += 1
            if at == len(spans):
                return
            if spans[at][0] >= end:
                continue
            computed = values(tile)
            for start, stop in spans[at:]:
                if start >= end:
                    break
                first, last = max(start, tile.start), min(stop, end)
                yield first, computed[first - tile.start : last - tile.start]

    return again
