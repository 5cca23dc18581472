"""Arcee Fusion's threshold: quantiles of |δ| times the divergence of its row's softmax from the base's."""

from __future__ import annotations

from typing import Final

import numpy as np

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.elementary import portable_exp, portable_log
from mergepipe.core.leaves import LEAF
from mergepipe.stats import magnitudes
from mergepipe.stats.accumulators import Wide
from mergepipe.stats.contract import GroupFact, ImportanceNeed
from mergepipe.stats.derived import counting_room, values_again
from mergepipe.stats.group import Demand, Geometry, GroupLook, GroupTile
from mergepipe.stats.loops import LOOPS_BYTES, quickest_loops
from mergepipe.stats.magnitudes import Magnitudes
from mergepipe.stats.rows import RowSums, row_sums_bytes

# Added to every share, so that none is zero.
_FAINT: Final = 1e-8
# Temporaries of a tile in float64, the elementary functions' among them.
_TEMPORARIES: Final = 12


def importance_demand(need: ImportanceNeed, geometry: Geometry, memory: int) -> Demand:
    """Tiles of whole rows; several looks for the quantiles; takes what helps of `memory` bytes."""
    fixed = _fixed(need, geometry)
    room, working = counting_room(geometry, memory - fixed)
    return Demand(need.row, True, fixed + room + working, 1, 1 + magnitudes.further_looks(geometry.compute))


def _fixed(need: ImportanceNeed, geometry: Geometry) -> int:
    tile = max(need.row, LEAF)
    rows = tile * 8 * _TEMPORARIES + geometry.elements // need.row * 16 + row_sums_bytes(tile, need.row)
    return rows + LOOPS_BYTES + magnitudes.FIXED_BYTES + magnitudes.LEAF_BYTES


class Importance:
    """The fact of an `ImportanceNeed`. A divergence that rounding makes negative is zero."""

    def __init__(self, need: ImportanceNeed, geometry: Geometry, memory: int) -> None:
        self._row, self._geometry = need.row, geometry
        self._sums = RowSums(max(need.row, LEAF), need.row)
        self._divergence = np.zeros(geometry.elements // need.row)
        room, working = counting_room(geometry, memory - _fixed(need, geometry))
        elements = geometry.elements
        self._order = Magnitudes(elements, elements, geometry.compute, room, working, quickest_loops())

    def feed(self, tile: GroupTile) -> None:
        before = tile.base.astype(np.float64).reshape(-1, self._row)
        after = before + tile.deltas[0].astype(np.float64).reshape(-1, self._row)
        p, q = self._softmax(after) + _FAINT, self._softmax(before) + _FAINT
        room = self._sums.room(*p.shape)
        np.multiply(p, portable_log(p / q), out=room)
        first = tile.start // self._row
        self._divergence[first : first + len(p)] = np.maximum(self._sums.sums(), 0.0)
        self._order.feed(tile.start, self._importance(tile))

    def finish(self, look: GroupLook) -> GroupFact:
        count = self._geometry.elements
        ranks = [count - int(share * (count - 1)) for share in (0.25, 0.5, 0.75)]
        low, median, high = (cut.threshold for cut in self._order.finish(values_again(look, self._importance), ranks))
        return {"threshold": median + 1.5 * (high - low), "divergence": self._divergence.tolist()}

    def _softmax(self, rows: Wide) -> Wide:
        raised = portable_exp(rows - rows.max(axis=1, keepdims=True))
        np.copyto(self._sums.room(*raised.shape), raised)
        raised /= self._sums.sums()[:, None]
        return raised

    def _importance(self, tile: GroupTile) -> FloatArray:
        """|δ| · KL of a tile whose rows' divergences are known, in the tiles' dtype."""
        first = tile.start // self._row
        rows = tile.base.size // self._row
        divergence = self._divergence[first : first + rows].astype(self._geometry.compute)
        found: FloatArray = np.abs(tile.deltas[0]) * np.repeat(divergence, self._row)
        return found
