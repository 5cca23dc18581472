"""SCE's selection, the positions of largest variance over the deltas, and the deltas' energy at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF
from mergepipe.stats import magnitudes
from mergepipe.stats.accumulators import LANES, LeafAdder
from mergepipe.stats.contract import GroupFact, VarianceMaskNeed
from mergepipe.stats.derived import counting_room, values_again
from mergepipe.stats.group import Demand, Geometry, GroupLook, GroupTile
from mergepipe.stats.loops import LOOPS_BYTES, quickest_loops
from mergepipe.stats.magnitudes import MagnitudeCut, Magnitudes

# The adder, and a leaf's temporaries.
_SUMS: Final = (LEAF + LANES) * 8 * 5
_FIXED: Final = _SUMS + LOOPS_BYTES + magnitudes.FIXED_BYTES + magnitudes.LEAF_BYTES


def variance_demand(need: VarianceMaskNeed, geometry: Geometry, memory: int) -> Demand:
    """Leaves, several looks for the threshold and one for the sums; takes what helps of `memory` bytes."""
    if need.topk >= 1.0:
        return Demand(1, False, _SUMS, 1, 1)
    room, working = counting_room(geometry, memory - _FIXED)
    return Demand(1, False, _FIXED + room + working, 2, 2 + magnitudes.further_looks(geometry.compute))


class VarianceMask:
    """The fact of a `VarianceMaskNeed`. Tiles are leaves counted from the tensor's start."""

    def __init__(self, need: VarianceMaskNeed, geometry: Geometry, memory: int) -> None:
        self._topk, self._geometry = need.topk, geometry
        self._nonzero = 0
        self._squares = np.zeros(geometry.terms)
        self._adder = LeafAdder(1)
        room, working = counting_room(geometry, memory - _FIXED)
        elements = geometry.elements
        self._order = (
            Magnitudes(elements, elements, geometry.compute, room, working, quickest_loops())
            if need.topk < 1.0
            else None
        )

    def feed(self, tile: GroupTile) -> None:
        if self._order is None:
            self._add(tile, None)
            return
        variance = variance_of(tile.deltas)
        self._nonzero += int(np.count_nonzero(variance))
        self._order.feed(tile.start, variance)

    def finish(self, look: GroupLook) -> GroupFact:
        elements = self._geometry.elements
        if self._order is None:
            return self._fact(MagnitudeCut(0.0, elements - 1), elements)
        kept = int(self._topk * self._nonzero)
        if not kept:
            return self._fact(MagnitudeCut(0.0, -1), 0)
        (cut,) = self._order.finish(values_again(look, lambda tile: variance_of(tile.deltas)), [kept])
        for tile in look():
            self._add(tile, cut)
        return self._fact(cut, kept)

    def _fact(self, cut: MagnitudeCut, kept: int) -> GroupFact:
        means = (self._squares / self._geometry.elements).tolist()
        return {"threshold": cut.threshold, "cut": cut.cut, "kept": kept, "mean_squares": means}

    def _add(self, tile: GroupTile, cut: MagnitudeCut | None) -> None:
        """Add a leaf's squares at the selected positions."""
        chosen = None if cut is None else _selected(tile, cut)
        for term, delta in enumerate(tile.deltas):
            squares = self._adder.row(0, delta.size)
            np.copyto(squares, delta)
            np.multiply(squares, squares, out=squares)
            if chosen is not None:
                squares[~chosen] = 0.0
            self._squares[term] += self._adder.sums(delta.size)[0]


def variance_of(deltas: Sequence[FloatArray]) -> FloatArray:
    """Σ(δᵢ − mean)² / K with mean = (Σδᵢ)/K, in the deltas' dtype, deltas in order."""
    count = len(deltas)
    mean = deltas[0].copy()
    for delta in deltas[1:]:
        np.add(mean, delta, out=mean)
    np.divide(mean, count, out=mean)
    variance, difference = np.zeros_like(mean), np.empty_like(mean)
    for term, delta in enumerate(deltas):
        into = difference if term else variance
        np.subtract(delta, mean, out=into)
        np.multiply(into, into, out=into)
        if term:
            np.add(variance, into, out=variance)
    np.divide(variance, count, out=variance)
    return variance


def _selected(tile: GroupTile, cut: MagnitudeCut) -> NDArray[np.bool_]:
    variance = variance_of(tile.deltas)
    threshold = variance.dtype.type(cut.threshold)
    chosen = variance > threshold
    until = cut.cut + 1 - tile.start
    if until > 0:
        chosen[:until] |= variance[:until] == threshold
    return chosen
