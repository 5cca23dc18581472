"""Sparsifying a delta in place: by magnitude with an exact cut, or by a keyed random mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from mergepipe.core.arrays import Array
from mergepipe.core.random import keep_mask, ranked_keep_mask
from mergepipe.operators.contract import Tile
from mergepipe.stats.contract import Fact


@dataclass(frozen=True, slots=True)
class Trim:
    """Keep `|δ| > threshold`, and `|δ| = threshold` at element positions up to `cut` inclusive."""

    threshold: float
    cut: int

    @classmethod
    def of(cls, fact: Fact) -> Trim:
        """The trim that the fact of a `TrimNeed` describes."""
        return cls(float(fact["threshold"]), int(fact["cut"]))

    def mark(self, tile: Tile, magnitudes: Array, kept: Array) -> None:
        """Flag in `kept` which of a tile's |δ| are kept."""
        xp = tile.xp
        ties = min(max(self.cut + 1 - tile.start, 0), tile.count)
        if ties > 0:
            xp.greater_equal(magnitudes[:ties], self.threshold, out=kept[:ties])
        if ties < tile.count:
            xp.greater(magnitudes[ties:], self.threshold, out=kept[ties:])


@dataclass(frozen=True, slots=True)
class Band:
    """Keep what `outer` keeps (None: everything) and `inner` does not (None: nothing); multiply that by `factor`."""

    outer: Trim | None
    inner: Trim | None
    factor: float

    def apply(self, tile: Tile, delta: Array) -> None:
        """Zero what a tile's `delta` does not keep, and rescale. Takes "mask" (floats, flags) and "inner" (flags)."""
        xp = tile.xp
        mask = tile.scratch.floats("mask", tile.count)
        kept = tile.scratch.flags("mask", tile.count)
        xp.abs(delta, out=mask)
        if self.outer is not None:
            self.outer.mark(tile, mask, kept)
        if self.inner is not None:
            within = kept if self.outer is None else tile.scratch.flags("inner", tile.count)
            self.inner.mark(tile, mask, within)
            xp.logical_not(within, out=within)
            if self.outer is not None:
                xp.logical_and(kept, within, out=kept)
        if self.outer is not None or self.inner is not None:
            # Two dense passes are faster than numpy's multiplication of floats by booleans.
            mask[...] = kept
            xp.multiply(delta, mask, out=delta)
        if self.factor != 1.0:
            xp.multiply(delta, self.factor, out=delta)


@dataclass(frozen=True, slots=True)
class Drop:
    """Keep each element with probability `density`, by the mask of `key`; multiply what is kept by `factor`."""

    key: int
    density: float
    factor: float

    def apply(self, tile: Tile, delta: Array) -> None:
        """Zero what the mask drops of `delta`, a tile's delta, and rescale. Takes the float array "mask"."""
        xp = tile.xp
        mask = tile.scratch.floats("mask", tile.count)
        mask[...] = xp.asarray(keep_mask(self.key, tile.start, tile.count, self.density))
        xp.multiply(delta, mask, out=delta)
        if self.factor != 1.0:
            xp.multiply(delta, self.factor, out=delta)


@dataclass(frozen=True, slots=True)
class RankedDrop:
    """Keep entries at random, larger ones of their row more likely; multiply what is kept by `factor`.

    The tile must hold whole rows of `row` elements; see `ranked_keep_mask`.
    """

    key: int
    density: float
    epsilon: float
    row: int
    factor: float

    def apply(self, tile: Tile, delta: Array) -> None:
        """Zero what the mask drops of `delta`, a tile's delta, and rescale. Takes the float array "mask"."""
        xp = tile.xp
        mask = tile.scratch.floats("mask", tile.count)
        xp.abs(delta, out=mask)
        kept = ranked_keep_mask(self.key, tile.start, np.asarray(mask), self.row, self.density, self.epsilon)
        mask[...] = xp.asarray(kept)
        xp.multiply(delta, mask, out=delta)
        if self.factor != 1.0:
            xp.multiply(delta, self.factor, out=delta)


_LARGEST: Final = float(np.finfo(np.float32).max)


def restoring(l1: float, kept_l1: float) -> float:
    """The factor that restores the L1 norm; 1 where nothing was left, or too little for float32 to say it."""
    factor = l1 / kept_l1 if kept_l1 else 1.0
    return factor if factor <= _LARGEST else 1.0
