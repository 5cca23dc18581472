"""Arcee Fusion: take over from the other model the entries that matter most.

The importance of an entry is `|δ| · KL(softmax(θ₁) ‖ softmax(θ₀))`, the divergence of its row; taken over is what
reaches `median + 1.5 (q₃ − q₁)` of the tensor's importances. The quantiles are those of all entries, where mergekit
draws a million at random from larger tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mergepipe.core.arrays import Array
from mergepipe.operators.additive import subtract_from_base
from mergepipe.operators.contract import (
    AccessClass,
    Grain,
    Norms,
    Operator,
    Parameter,
    Reads,
    Sizes,
    TensorSpec,
    Tile,
)
from mergepipe.operators.coupled import reason_unless_complete
from mergepipe.operators.parameters import require_one_term, row_of, to_tile
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, ImportanceNeed, Need

COUPLED = (
    "arcee_fusion decides entry by entry from the divergence of whole rows and quantiles of the whole tensor, so the "
    "expert is read in full before the first entry is merged: a budget would leave out what is read already"
)


@dataclass(frozen=True, slots=True)
class FusionCoefficients:
    """The least importance that is taken over, the divergence of each row, and the length of a row.

    Both are rounded to the tiles' dtype; no divergences where the tensor has no expert.
    """

    threshold: float
    divergences: tuple[float, ...]
    row: int


class ArceeFusion:
    """The method `arcee_fusion`."""

    name = "arcee_fusion"
    version = "arcee_fusion@mergekit"
    access = AccessClass.COUPLED
    grain = Grain.ELEMENT
    needs_base = True
    parameters: tuple[Parameter, ...] = ()
    doc = "θ = θ₀ + δ where |δ| KL(softmax(θ₁) ‖ softmax(θ₀)) is far above the median, of one model (arcee.ai)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """None; `RecipeError` for more than one model beside the base."""
        require_one_term(self.name, spec)
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        """Threshold and divergences; `RecipeError` for more than one model beside the base."""
        require_one_term(self.name, spec)
        return (ImportanceNeed(row_of(spec)),) if spec.terms else ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> FusionCoefficients:
        """Coefficients; `RecipeError` for more than one model beside the base."""
        require_one_term(self.name, spec)
        if not spec.terms:
            return FusionCoefficients(0.0, (), row_of(spec))
        fact: Any = group_facts[0]
        divergences = tuple(to_tile(float(each), spec, "the divergence of a row") for each in fact["divergence"])
        return FusionCoefficients(to_tile(float(fact["threshold"]), spec, "the threshold"), divergences, row_of(spec))

    def scratch_arrays(self, terms: int) -> int:
        """Importances, divergences of the tile's entries, the mask."""
        return 3

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        xp = tile.xp
        read = [delta for delta in tile.deltas if delta is not None]
        if not read:
            out[...] = tile.base
            return
        read[0](out)
        importance, kept = tile.scratch.floats("mask", tile.count), tile.scratch.flags("mask", tile.count)
        xp.abs(out, out=importance)
        xp.multiply(importance, xp.asarray(_divergences(tile, coefficients)), out=importance)
        xp.greater_equal(importance, coefficients.threshold, out=kept)
        importance[...] = kept
        xp.multiply(out, importance, out=out)
        xp.multiply(out, -1.0, out=out)
        subtract_from_base(tile, 1.0, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return (1.0,) if coefficients.divergences else ()

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return reason_unless_complete(COUPLED, norms, read)


def _divergences(tile: Tile, coefficients: FusionCoefficients) -> np.ndarray[Any, np.dtype[np.floating[Any]]]:
    """The divergence of each entry's row."""
    row = coefficients.row
    first, last = tile.start // row, (tile.start + tile.count - 1) // row
    kind = np.float64 if tile.base.dtype.itemsize == 8 else np.float32
    repeated = np.repeat(np.array(coefficients.divergences[first : last + 1], kind), row)
    return repeated[tile.start - first * row :][: tile.count]


OPERATORS: tuple[Operator, ...] = (ArceeFusion(),)
