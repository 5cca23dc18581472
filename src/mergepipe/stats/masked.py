"""Σ|δ| and Σ|δ·m| of a whole tensor under a keyed random mask, for DARE's rescale."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.random import keep_mask
from mergepipe.stats.accumulators import Wide
from mergepipe.stats.contract import Fact, MaskedL1Need
from mergepipe.stats.leafwise import LEAFWISE_BYTES, LeafwiseL1, Mask

WORKSPACE_BYTES: Final = LEAFWISE_BYTES


class MaskedL1Sums:
    """The facts of several `MaskedL1Need`s of one delta, fed in runs of any length from element 0 on."""

    def __init__(self, needs: Sequence[MaskedL1Need]) -> None:
        self._sums = LeafwiseL1([partial(_kept, need) for need in needs])

    def feed(self, magnitudes: FloatArray) -> None:
        """The next run of |δ|."""
        self._sums.feed(magnitudes)

    def facts(self) -> list[Fact]:
        """One fact a need, after the last run; elements never fed count as zeros."""
        absolute, masked = self._sums.sums()
        return [{"l1": absolute, "masked_l1": each} for each in masked]


def _kept(need: MaskedL1Need, start: int, leaf: Wide) -> Mask:
    return keep_mask(need.key, start, leaf.size, need.density)
