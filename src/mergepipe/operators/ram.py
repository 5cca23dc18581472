"""RAM: entries that one expert changed count in full, those that several changed are averaged over these.

An expert is active where `|δᵢ| > epsilon`; with c the number of active experts, `θ = θ₀ + Σ_active δᵢ / c`.
`ramplus_tl` multiplies the entries that are an expert's alone by `1 + r·min(ρᵢ, alpha)`, `ρᵢ` the number of its
shared entries over that of its own in the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from mergepipe.operators.parameters import number, tile_weights, to_tile
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need, OverlapNeed

COUPLED = (
    "ram averages an entry over the experts that changed it: what is left out changes how much the others count, "
    "so the error is not in proportion to it"
)

_EPSILON = Parameter("epsilon", float, 1e-5, low=0.0, doc="an entry counts as changed above this magnitude")


@dataclass(frozen=True, slots=True)
class RamCoefficients:
    """When an entry counts as changed, and how many terms there are."""

    epsilon: float
    terms: int


@dataclass(frozen=True, slots=True)
class RamPlusCoefficients:
    """When an entry counts as changed, and each term's factor for what it alone changed."""

    epsilon: float
    unique: tuple[float, ...]


class Ram:
    """The method `ram`."""

    name = "ram"
    version = "ram@mergekit"
    access = AccessClass.COUPLED
    grain = Grain.ELEMENT
    needs_base = True
    parameters = (_EPSILON,)
    doc = "θ = θ₀ + Σ δᵢ / c over the c experts that changed the entry (arXiv:2601.13572)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> RamCoefficients:
        return RamCoefficients(_epsilon(spec), len(spec.terms))

    def scratch_arrays(self, terms: int) -> int:
        """A term, its mask (floats and flags) and the count."""
        return 4

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        xp, count = tile.xp, tile.scratch.floats("count", tile.count)
        term = tile.scratch.floats("term", tile.count)
        out[...] = 0.0
        count[...] = 0.0
        for delta in tile.deltas:
            if delta is not None:
                _take_active(tile, delta, coefficients.epsilon, term, count)
                xp.subtract(out, term, out=out)
        xp.clip(count, 1.0, None, out=count)
        xp.divide(out, count, out=out)
        subtract_from_base(tile, 1.0, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return (1.0,) * int(coefficients.terms)

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return reason_unless_complete(COUPLED, norms, read)


class RamPlus:
    """The method `ramplus_tl`: RAM with the entries of one expert alone strengthened, tensor by tensor."""

    name = "ramplus_tl"
    version = "ramplus_tl@mergekit"
    access = AccessClass.COUPLED
    grain = Grain.ELEMENT
    needs_base = True
    parameters = (
        Parameter("r", float, 0.1, doc="how much entries of one expert alone are strengthened"),
        Parameter("alpha", float, 0.2, doc="the most that the share of shared entries counts"),
        _EPSILON,
    )
    doc = "as ram, entries of expert i alone times 1 + r min(ρᵢ, alpha), ρᵢ its shared over its own (arXiv:2601.13572)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return (OverlapNeed(_epsilon(spec)),) if spec.terms else ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> RamPlusCoefficients:
        factors: list[float] = []
        if spec.terms:
            fact: Any = group_facts[0]
            r, alpha = number(spec.parameters, "r"), number(spec.parameters, "alpha")
            for shared, unique in zip(fact["shared"], fact["unique"], strict=True):
                # Without an entry of its own the factor touches nothing.
                factors.append(1.0 + r * min(shared / unique, alpha) if unique else 1.0)
        return RamPlusCoefficients(_epsilon(spec), tile_weights(factors, spec))

    def scratch_arrays(self, terms: int) -> int:
        """A term, its mask (floats and flags), the count and the sum of what is one expert's alone."""
        return 5

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        xp, count = tile.xp, tile.scratch.floats("count", tile.count)
        term, alone = tile.scratch.floats("term", tile.count), tile.scratch.floats("alone", tile.count)
        mask, kept = tile.scratch.floats("mask", tile.count), tile.scratch.flags("mask", tile.count)
        for array in (out, count, alone):
            array[...] = 0.0
        for factor, delta in zip(coefficients.unique, tile.deltas, strict=True):
            if delta is not None:
                _take_active(tile, delta, coefficients.epsilon, term, count)
                xp.subtract(out, term, out=out)
                xp.multiply(term, factor, out=term)
                xp.subtract(alone, term, out=alone)
        # Both sums are whole at every position; each is taken where it is meant.
        xp.less(count, 1.5, out=kept)
        mask[...] = kept
        xp.multiply(alone, mask, out=alone)
        xp.greater(count, 1.5, out=kept)
        mask[...] = kept
        xp.multiply(out, mask, out=out)
        xp.clip(count, 1.0, None, out=count)
        xp.divide(out, count, out=out)
        xp.add(out, alone, out=out)
        subtract_from_base(tile, 1.0, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return tuple(max(1.0, abs(factor)) for factor in coefficients.unique)

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return reason_unless_complete(COUPLED, norms, read)


def _epsilon(spec: TensorSpec) -> float:
    return to_tile(number(spec.parameters, "epsilon"), spec, "epsilon")


def _take_active(tile: Tile, delta: Any, epsilon: float, into: Array, count: Array) -> None:
    """The active entries of a delta, zeros elsewhere, into `into`; counts them in `count`."""
    xp = tile.xp
    mask, kept = tile.scratch.floats("mask", tile.count), tile.scratch.flags("mask", tile.count)
    delta(into)
    xp.abs(into, out=mask)
    xp.greater(mask, epsilon, out=kept)
    mask[...] = kept
    xp.multiply(into, mask, out=into)
    xp.add(count, mask, out=count)


OPERATORS: tuple[Operator, ...] = (Ram(), RamPlus())
