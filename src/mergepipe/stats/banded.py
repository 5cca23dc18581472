"""Σ|δ| and Σ|δ| over a band of magnitudes, for the rescale of `ties` and of breadcrumbs.

Where a band begins and ends is known only when all of a delta has been counted, so these sums take
another look at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from mergepipe.core.dtypes import FloatArray
from mergepipe.stats.accumulators import Wide
from mergepipe.stats.contract import BandL1Need, Fact
from mergepipe.stats.leafwise import LEAFWISE_BYTES, LeafwiseL1, Mask
from mergepipe.stats.magnitudes import MagnitudeCut

WORKSPACE_BYTES: Final = LEAFWISE_BYTES


def ranks_of(need: BandL1Need, total: int) -> tuple[int, ...]:
    """The ranks at which the band of a delta of `total` elements begins and ends; none at the delta's own ends."""
    return tuple(rank for rank in (need.skipped, need.skipped + need.kept) if 0 < rank < total)


class BandL1Sums:
    """The facts of several `BandL1Need`s of one delta, fed in runs of any length from element 0 on.

    `cuts` has the cut of every rank of `ranks_of`.
    """

    def __init__(self, needs: Sequence[BandL1Need], cuts: Mapping[int, MagnitudeCut]) -> None:
        bands = [_Band(cuts.get(need.skipped), cuts.get(need.skipped + need.kept)) for need in needs]
        self._sums = LeafwiseL1([partial(_inside, band) for band in bands])

    def feed(self, magnitudes: FloatArray) -> None:
        """The next run of |δ|."""
        self._sums.feed(magnitudes)

    def facts(self) -> list[Fact]:
        """One fact a need, after the last run; elements never fed count as zeros."""
        absolute, kept = self._sums.sums()
        return [{"l1": absolute, "kept_l1": each} for each in kept]


@dataclass(frozen=True, slots=True)
class _Band:
    """What `outer` keeps (None: everything) and `inner` does not (None: nothing)."""

    inner: MagnitudeCut | None
    outer: MagnitudeCut | None


def _inside(band: _Band, start: int, leaf: Wide) -> Mask:
    kept = np.ones(leaf.size, np.bool_) if band.outer is None else _kept(band.outer, start, leaf)
    if band.inner is not None:
        kept &= ~_kept(band.inner, start, leaf)
    return kept


def _kept(cut: MagnitudeCut, start: int, leaf: Wide) -> Mask:
    ties = min(max(cut.cut + 1 - start, 0), leaf.size)
    kept = np.greater(leaf, cut.threshold)
    np.greater_equal(leaf[:ties], cut.threshold, out=kept[:ties])
    return kept
