"""SCE: select the positions where experts differ most, weigh each expert by its energy there, erase lost votes.

Of n positions the `⌊topk · nonzero⌋` of largest variance over the experts are selected, the same for all. With
`xᵢ = δᵢ` there and 0 elsewhere: `s = +1` where `Σ xᵢ ≥ 0` else `−1` (unweighted), `ωᵢ = Σxᵢ² / ΣⱼΣxⱼ²`, and the
update is `Σ ωᵢxᵢ / max(Σ ωᵢ, 10⁻⁶)` over the terms with `sign(xᵢ) = s`. mergekit makes all `ωᵢ` equal where the
mean squares add up to less than 10⁻⁶, which is the rule for light fine-tunes; the paper (arXiv:2408.07990) does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mergepipe.core.arrays import Array
from mergepipe.operators.additive import subtract_from_base
from mergepipe.operators.consensus import elected_sign, flip_signs, scratch_arrays
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
from mergepipe.operators.parameters import INT8_MASK, number, tile_weights
from mergepipe.operators.sparsify import Trim
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need, VarianceMaskNeed

MERGEKIT = "mergekit"
PAPER = "paper"

COUPLED = (
    "sce selects positions by how all experts differ there and elects a sign among them: what is left out changes how "
    "the other experts count, so the error is not in proportion to it"
)

# Below this sum of mean squares mergekit weighs all experts alike.
_FAINT = 1e-6
LEAST_DIVISOR = 1e-6


@dataclass(frozen=True, slots=True)
class SceCoefficients:
    """`ωᵢ` of each term; the cut of the variance, None where every position is selected; whether any is."""

    weights: tuple[float, ...]
    selection: Trim | None
    empty: bool


class Sce:
    """The method `sce` in one of its variants, `"mergekit"` or `"paper"`."""

    name = "sce"
    access = AccessClass.COUPLED
    grain = Grain.ELEMENT
    needs_base = True
    parameters = (
        Parameter("select_topk", float, 1.0, low=0.0, high=1.0, doc="fraction of the differing positions merged"),
        INT8_MASK,
    )
    doc = "θ = θ₀ + Σ ωᵢxᵢ / Σ ωᵢ over the elected sign, xᵢ = δᵢ where experts differ most (arXiv:2408.07990)"

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self.version = f"{self.name}@{variant}"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        topk = number(spec.parameters, "select_topk")
        return (VarianceMaskNeed(topk),) if topk > 0.0 and spec.terms else ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> SceCoefficients:
        if not self.group_needs(spec):
            return SceCoefficients((0.0,) * len(spec.terms), None, empty=True)
        fact: Any = group_facts[0]
        squares = [float(square) for square in fact["mean_squares"]]
        total = math.fsum(squares)
        alike = total == 0.0 if self._variant == PAPER else total < _FAINT
        weights = [1.0 / len(squares) if alike else square / total for square in squares]
        whole = number(spec.parameters, "select_topk") >= 1.0
        return SceCoefficients(tile_weights(weights, spec), None if whole else Trim.of(fact), not fact["kept"])

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms)

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        votes: list[Array | None] = [None] * len(tile.deltas)
        if not coefficients.empty:
            for term, delta in enumerate(tile.deltas):
                if delta is not None:
                    votes[term] = tile.scratch.floats(f"vote {term}", tile.count)
                    delta(votes[term])
        if all(vote is None for vote in votes):
            out[...] = tile.base
            return
        if coefficients.selection is not None:
            _select(tile, votes, coefficients.selection)
        _merge(tile, votes, coefficients.weights, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return (1.0,) * len(coefficients.weights)

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return reason_unless_complete(COUPLED, norms, read)


def _select(tile: Tile, votes: Sequence[Array | None], selection: Trim) -> None:
    """Zero the votes at positions of lesser variance. An unread delta is a zero in the variance, as in the votes."""
    xp, scratch, count = tile.xp, tile.scratch, tile.count
    mean, variance = scratch.floats("sum", count), scratch.floats("divisor", count)
    difference, kept = scratch.floats("mask", count), scratch.flags("mask", count)
    _add_up(votes, mean, xp)
    xp.divide(mean, float(len(votes)), out=mean)
    for term, vote in enumerate(votes):
        into = difference if term else variance
        if vote is None:
            xp.multiply(mean, mean, out=into)
        else:
            xp.subtract(vote, mean, out=into)
            xp.multiply(into, into, out=into)
        if term:
            xp.add(variance, into, out=variance)
    xp.divide(variance, float(len(votes)), out=variance)
    selection.mark(tile, variance, kept)
    difference[...] = kept
    for vote in votes:
        if vote is not None:
            xp.multiply(vote, difference, out=vote)


def _merge(tile: Tile, votes: Sequence[Array | None], weights: Sequence[float], out: Array) -> None:
    xp, scratch, count = tile.xp, tile.scratch, tile.count
    total, divisor = scratch.floats("sum", count), scratch.floats("divisor", count)
    mask, kept = scratch.floats("mask", count), scratch.flags("mask", count)
    _add_up(votes, out, xp)
    sign = elected_sign(out, xp)
    total[...] = 0.0
    divisor[...] = 0.0
    for weight, vote in zip(weights, votes, strict=True):
        if vote is None:
            continue
        flip_signs(vote, sign, xp)
        xp.greater(vote, 0.0, out=kept)
        mask[...] = kept
        xp.multiply(mask, weight, out=mask)
        xp.add(divisor, mask, out=divisor)
        xp.multiply(vote, mask, out=vote)
        xp.add(total, vote, out=total)
    xp.clip(divisor, LEAST_DIVISOR, None, out=divisor)
    xp.divide(total, divisor, out=total)
    xp.bitwise_xor(total.view(sign.dtype), sign, out=sign)
    xp.multiply(out, -1.0, out=out)
    subtract_from_base(tile, 1.0, out)


def _add_up(votes: Sequence[Array | None], out: Array, xp: Any) -> None:
    """The sum of what is read, in recipe order."""
    first = True
    for vote in votes:
        if vote is None:
            continue
        if first:
            out[...] = vote
        else:
            xp.add(out, vote, out=out)
        first = False


OPERATORS: tuple[Operator, ...] = (Sce(MERGEKIT), Sce(PAPER))
