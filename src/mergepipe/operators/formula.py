"""Merges whose arithmetic is plain data: what is kept of each task vector, and the rule that puts them together.

Most methods are such. Their coefficients are a `Formula`, whose `write` is the arithmetic; being data, it may also be
computed by other loops with the same bits (`mergepipe.operators.quick`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from mergepipe.core.arrays import Array
from mergepipe.operators.additive import Mixture, mix, omitted_sum
from mergepipe.operators.consensus import Election, elect, election_bound, election_gains
from mergepipe.operators.contract import Delta, Norms, Reads, Sizes, Tile
from mergepipe.operators.sparsify import Band, Drop, RankedDrop

Rule: TypeAlias = Mixture | Election
Part: TypeAlias = Band | Drop | RankedDrop


@dataclass(frozen=True, slots=True)
class Formula:
    """`rule` over `xᵢ`, what `parts[i]` keeps of `δᵢ`; None where all of it counts (or, of an inert term, nothing)."""

    rule: Rule
    parts: tuple[Part | None, ...]

    @classmethod
    def of_whole(cls, rule: Rule) -> Formula:
        """The rule over the task vectors as they are."""
        return cls(rule, (None,) * len(rule.weights))

    def write(self, tile: Tile, out: Array) -> None:
        """The tile's result into `out`."""

        def write(term: int, delta: Delta, into: Array) -> None:
            delta(into)
            part = self.parts[term]
            if part is not None:
                part.apply(tile, into)

        if isinstance(self.rule, Mixture):
            mix(tile, self.rule, write, out)
        else:
            elect(tile, self.rule, write, out)

    @property
    def factors(self) -> tuple[float, ...]:
        """`fᵢ` with `‖xᵢ‖ ≤ fᵢ‖δᵢ‖`."""
        return tuple(1.0 if part is None else part.factor for part in self.parts)

    @property
    def gains(self) -> tuple[float, ...]:
        """See `Operator.gains`."""
        if isinstance(self.rule, Election):
            return election_gains(self.rule, self.factors)
        return tuple(gain * factor for gain, factor in zip(self.rule.gains, self.factors, strict=True))

    @property
    def base_gain(self) -> float:
        """`|a₀|`."""
        return abs(self.rule.base) if isinstance(self.rule, Mixture) else 1.0

    @property
    def keeps_base(self) -> bool:
        """Whether `a₀ = 1`."""
        return not isinstance(self.rule, Mixture) or self.rule.base == 1.0

    @property
    def uniform(self) -> bool:
        """Whether the update is a sum of the task vectors, each times one number."""
        return isinstance(self.rule, Mixture) and all(part is None for part in self.parts)

    def bound(self, norms: Norms, read: Reads) -> Norms | str:
        """See `Operator.bound`."""
        if isinstance(self.rule, Election):
            return election_bound(self.rule, self.factors, norms, read)
        return omitted_sum(self.gains, norms, read)


class FormulaMethod:
    """What methods are like whose coefficients are a `Formula`, or know the same of themselves."""

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        coefficients.write(tile, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return bool(coefficients.keeps_base)

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        gains: tuple[float, ...] = coefficients.gains
        return gains

    def exact_gains(self, coefficients: Any) -> bool:
        return bool(coefficients.uniform)

    def base_gain(self, coefficients: Any) -> float:
        return float(coefficients.base_gain)

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        bound: Norms | str = coefficients.bound(norms, read)
        return bound
