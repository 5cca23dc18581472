"""Σ|δ| and Σ|δ·m| of a whole tensor, the mask keeping entries by their rank within their row, for DELLA's rescale.

The masks are those that execution applies, so rows are ranked whole: a row that is longer than a leaf is
held in memory whole.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF
from mergepipe.core.random import ranked_keep_mask, ranking_bytes
from mergepipe.stats.accumulators import Wide
from mergepipe.stats.contract import Fact, RankedMaskL1Need
from mergepipe.stats.leafwise import LEAFWISE_BYTES, LeafwiseL1, Mask


def held_bytes(need: RankedMaskL1Need, compute: np.dtype[Any]) -> int:
    """Bytes one `RankedMaskL1Sums` holds from run to run."""
    return LEAFWISE_BYTES + LEAF + _capacity(need.row) * compute.itemsize


def working_bytes(need: RankedMaskL1Need) -> int:
    """Bytes of temporaries while rows are ranked; one `RankedMaskL1Sums` takes them at a time."""
    return ranking_bytes(_capacity(need.row), need.row)


class RankedMaskL1Sums:
    """The fact of a `RankedMaskL1Need` of one delta, fed in runs of any length from element 0 on.

    `compute` is the dtype of the runs, in which rows are ranked. A row of which only the beginning is fed
    ends with zeros.
    """

    def __init__(self, need: RankedMaskL1Need, compute: np.dtype[Any]) -> None:
        self._need = need
        self._rows = np.empty(_capacity(need.row), compute)
        self._filled = 0
        self._start = 0
        self._kept = np.empty(LEAF, np.bool_)
        # Not a method: a cycle of references would hold the buffers until the next collection.
        self._sums = LeafwiseL1([partial(_beginning, self._kept)])

    def feed(self, magnitudes: FloatArray) -> None:
        """The next run of |δ|."""
        at = 0
        while at < magnitudes.size:
            count = min(self._rows.size - self._filled, magnitudes.size - at)
            self._rows[self._filled : self._filled + count] = magnitudes[at : at + count]
            self._filled += count
            at += count
            if self._filled == self._rows.size:
                self._rank()

    def fact(self) -> Fact:
        """After the last run; rows never fed count as zeros."""
        missing = -self._filled % self._need.row
        self._rows[self._filled : self._filled + missing] = 0.0
        self._filled += missing
        self._rank()
        absolute, (masked,) = self._sums.sums()
        return {"l1": absolute, "masked_l1": masked}

    def _rank(self) -> None:
        """Mask the rows that are filled, and hand them on, a leaf's part at a time."""
        need, rows = self._need, self._rows[: self._filled]
        kept = ranked_keep_mask(need.key, self._start, rows, need.row, need.density, need.epsilon)
        at = 0
        while at < rows.size:
            place = (self._start + at) % LEAF
            count = min(LEAF - place, rows.size - at)
            self._kept[place : place + count] = kept[at : at + count]
            self._sums.feed(rows[at : at + count])
            at += count
        self._start += rows.size
        self._filled = 0


def _beginning(kept: Mask, _start: int, leaf: Wide) -> Mask:
    return kept[: leaf.size]


def _capacity(row: int) -> int:
    """Elements of the rows that are ranked at once: a leaf's worth, or one longer row."""
    return max(LEAF // row, 1) * row
