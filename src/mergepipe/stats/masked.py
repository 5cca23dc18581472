"""Σ|δ| and Σ|δ·m| of a whole tensor under a keyed random mask, for DARE's rescale.

The sums are over leaves counted from the tensor's start, by the tree of `accumulators`, so that they
know nothing of block grids. Elements that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF
from mergepipe.core.random import keep_mask
from mergepipe.stats.accumulators import LeafAdder
from mergepipe.stats.contract import Fact, MaskedL1Need

# The adder's three arrays of a leaf (products, lanes) and the leaf being filled.
WORKSPACE_BYTES: Final = LEAF * 8 * 3


class MaskedL1Sums:
    """The facts of several `MaskedL1Need`s of one delta, fed in runs of any length from element 0 on."""

    def __init__(self, needs: Sequence[MaskedL1Need]) -> None:
        self._needs = needs
        self._adder = LeafAdder(2)
        self._leaf = np.empty(LEAF)
        self._filled = 0
        self._start = 0
        self._absolute = 0.0
        self._masked = [0.0] * len(needs)

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

    def facts(self) -> list[Fact]:
        """One fact a need, after the last run; elements never fed count as zeros."""
        self._flush()
        return [{"l1": self._absolute, "masked_l1": masked} for masked in self._masked]

    def _flush(self) -> None:
        count, self._filled = self._filled, 0
        if not count:
            return
        leaf = self._leaf[:count]
        odd = ~np.isfinite(leaf)
        if odd.any():
            leaf[odd] = 0.0
        self._adder.row(0, count)[:] = leaf
        for number, need in enumerate(self._needs):
            mask = keep_mask(need.key, self._start, count, need.density)
            np.multiply(leaf, mask, out=self._adder.row(1, count))
            total, masked = self._adder.sums(count).tolist()
            if number == 0:
                self._absolute += total
            self._masked[number] += masked
        self._start += count
