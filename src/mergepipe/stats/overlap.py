"""At how many places a delta is active beside others or alone, for RAM."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF
from mergepipe.stats.contract import GroupFact, OverlapNeed
from mergepipe.stats.group import Demand, Geometry, GroupLook, GroupTile


def overlap_demand(geometry: Geometry) -> Demand:
    """Leaves; flags of every delta and their count."""
    return Demand(1, False, (geometry.terms + 10) * LEAF, 1, 1)


class Overlap:
    """The fact of an `OverlapNeed`: integer counts, whatever the tiles."""

    def __init__(self, need: OverlapNeed, geometry: Geometry) -> None:
        self._epsilon = need.epsilon
        self._shared: NDArray[np.int64] = np.zeros(geometry.terms, np.int64)
        self._unique: NDArray[np.int64] = np.zeros(geometry.terms, np.int64)

    def feed(self, tile: GroupTile) -> None:
        active = [np.abs(delta) > self._epsilon for delta in tile.deltas]
        count = np.zeros(tile.base.size, np.int32)
        for each in active:
            count += each
        several, one = count > 1, count == 1
        for term, each in enumerate(active):
            self._shared[term] += np.count_nonzero(each & several)
            self._unique[term] += np.count_nonzero(each & one)

    def finish(self, look: GroupLook) -> GroupFact:
        return {"shared": self._shared.astype(np.float64).tolist(), "unique": self._unique.astype(np.float64).tolist()}
