"""What a statistic of several deltas together asks of whoever streams a tensor past it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mergepipe.core.dtypes import FloatArray
from mergepipe.stats.contract import GroupFact


@dataclass(frozen=True, slots=True)
class Geometry:
    """One tensor: its shape, how many deltas it is given, and the dtype of tiles (float32 or float64)."""

    shape: tuple[int, ...]
    terms: int
    compute: np.dtype[Any]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Demand:
    """How a statistic wants its tiles, and what it takes.

    Tiles are runs of whole `unit`s of elements, of at most a leaf. A larger unit comes in leaves counted from its
    start, or with `whole` in one tile. `bytes` are taken beside the tiles. The tensor is gone through `looks` times
    for certain if there is anything to find, and `most` times at most.
    """

    unit: int
    whole: bool
    bytes: int
    looks: int
    most: int


@dataclass(slots=True)
class GroupTile:
    """A run of elements from `start` on: the base and the deltas, in one dtype. Overwritten by the next tile."""

    start: int
    base: FloatArray
    deltas: Sequence[FloatArray]


# Goes through the whole tensor again.
GroupLook = Callable[[], Iterator[GroupTile]]


class GroupStatistic(Protocol):
    """Fed every tile of a tensor in order, once; then asked for its fact, for which it may look again."""

    def feed(self, tile: GroupTile) -> None: ...

    def finish(self, look: GroupLook) -> GroupFact: ...
