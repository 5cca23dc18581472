"""Sums of rows of numbers, each by the leaf tree of `accumulators`, its leaves counted from the row's start."""

from __future__ import annotations

import numpy as np

from mergepipe.core.leaves import LEAF
from mergepipe.stats.accumulators import LANES, Wide, add_rows, halve


class RowSums:
    """Sums of as many rows at a time as have room in `most` elements, of `length` numbers or fewer."""

    def __init__(self, most: int, length: int) -> None:
        # Of a short row only so many lanes are laid out as can hold a number: the others would add zeros.
        self._lanes = _lanes(length)
        rows = max(1, most // length)
        self._padded = np.zeros(rows * _padded(length, self._lanes))
        self._sums = np.empty((rows, self._lanes))
        self._shape = (0, 0)

    def room(self, count: int, length: int) -> Wide:
        """Where to write `count` rows of `length` numbers, to be summed next; of shape (count, length)."""
        width = _padded(length, self._lanes)
        self._shape = count, width
        rows = self._padded[: count * width].reshape(count, width)
        rows[:, length:] = 0.0
        return rows[:, :length]

    def sums(self) -> Wide:
        """One sum a row of what was written last; never −0."""
        count, width = self._shape
        rows = self._padded[: count * width].reshape(count, width)
        total = np.zeros(count)
        for start in range(0, width, LEAF):
            lanes = self._sums[:count]
            add_rows(rows[:, start : start + LEAF].reshape(count, -1, self._lanes), lanes)
            total += halve(lanes, 1)[:, 0]
        return total


def row_sums_bytes(most: int, length: int) -> int:
    """Bytes a `RowSums` takes."""
    lanes = _lanes(length)
    return max(1, most // length) * (_padded(length, lanes) + lanes + 1) * 8


def _lanes(length: int) -> int:
    return min(LANES, 1 << (length - 1).bit_length())


def _padded(length: int, lanes: int) -> int:
    return -(-length // lanes) * lanes
