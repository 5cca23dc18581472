"""Sparsifying a delta in place: by magnitude with an exact cut, or by a keyed random mask."""

from __future__ import annotations

from dataclasses import dataclass

from mergepipe.core.arrays import Array
from mergepipe.core.random import keep_mask
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

    def apply(self, tile: Tile, delta: Array) -> None:
        """Zero what `delta`, a tile's delta, does not keep. Takes the float and flag array "mask"."""
        xp = tile.xp
        mask = tile.scratch.floats("mask", tile.count)
        kept = tile.scratch.flags("mask", tile.count)
        xp.abs(delta, out=mask)
        ties = min(max(self.cut + 1 - tile.start, 0), tile.count)
        if ties > 0:
            xp.greater_equal(mask[:ties], self.threshold, out=kept[:ties])
        if ties < tile.count:
            xp.greater(mask[ties:], self.threshold, out=kept[ties:])
        # Two dense passes are faster than numpy's multiplication of floats by booleans.
        mask[...] = kept
        xp.multiply(delta, mask, out=delta)


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
