"""Σ|δ| and Σ|δ·m| of a whole tensor, for masks m that need not be known before their leaf is complete.

The sums are over leaves counted from the tensor's start, by the tree of `accumulators`, so that they
know nothing of block grids nor of how a tensor is read. Elements that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF
from mergepipe.stats.accumulators import LeafAdder, Wide

Mask = NDArray[np.bool_]
# Which elements of a leaf are kept, from the position of its first element and its |δ|.
Kept = Callable[[int, Wide], Mask]

# The adder's two rows of products, and the leaf being filled.
LEAFWISE_BYTES: Final = LEAF * 8 * 3


class LeafwiseL1:
    """Sums of one delta under several masks, fed in runs of any length from element 0 on."""

    def __init__(self, masks: Sequence[Kept]) -> None:
        self._masks = masks
        self._adder = LeafAdder(2)
        self._leaf = np.empty(LEAF)
        self._filled = 0
        self._start = 0
        self._absolute = 0.0
        self._masked = [0.0] * len(masks)

    def feed(self, magnitudes: FloatArray) -> None:
        """The next run of |δ|."""
        at = 0
        while at < magnitudes.size:
            count = min(LEAF - self._filled, magnitudes.size - at)
            self._leaf[self._filled : self._filled + count] = magnitudes[at : at + count]
            self._filled += count
            at += count
            if self._filled == LEAF:
                self._flush()

    def sums(self) -> tuple[float, list[float]]:
        """Σ|δ|, and Σ|δ·m| for each mask, after the last run; elements never fed count as zeros."""
        self._flush()
        return self._absolute, self._masked

    def _flush(self) -> None:
        count, self._filled = self._filled, 0
        if not count:
            return
        leaf = self._leaf[:count]
        odd = ~np.isfinite(leaf)
        if odd.any():
            leaf[odd] = 0.0
        self._adder.row(0, count)[:] = leaf
        for number, kept in enumerate(self._masks):
            np.multiply(leaf, kept(self._start, leaf), out=self._adder.row(1, count))
            total, masked = self._adder.sums(count).tolist()
            if number == 0:
                self._absolute += total
            self._masked[number] += masked
        self._start += count
