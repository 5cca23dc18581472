"""TIES: keep the largest entries of each tensor's task vector, elect a sign per element, merge what agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mergepipe.core.arrays import Array
from mergepipe.errors import RecipeError
from mergepipe.operators.consensus import (
    Election,
    elect,
    election_bound,
    election_gains,
    resolve_election,
    scratch_arrays,
)
from mergepipe.operators.contract import AccessClass, Delta, Grain, Norms, Operator, Reads, TensorSpec, Tile
from mergepipe.operators.parameters import DENSITY, INT8_MASK, LAMBDA, WEIGHT, is_sparse, normalize, number, rescale
from mergepipe.operators.sparsify import Trim
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need, TrimNeed


@dataclass(frozen=True, slots=True)
class TiesCoefficients:
    """The election and each term's trim, None where the whole delta (or, of an inert term, nothing) counts."""

    election: Election
    trims: tuple[Trim | None, ...]


class Ties:
    """The method `ties`."""

    name = "ties"
    version = "ties@mergekit"
    access = AccessClass.SIGN_ELECTED
    grain = Grain.ELEMENT
    needs_base = True
    parameters = (
        WEIGHT,
        DENSITY,
        LAMBDA,
        normalize(True),
        rescale(False, "not supported for ties: stretch trimmed task vectors to their first L1 norm"),
        INT8_MASK,
    )
    doc = "θ = θ₀ + λ Σ wᵢxᵢ / Σ wᵢ over the elected sign, xᵢ the trimmed δᵢ (arXiv:2306.01708)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """Threshold and cut of each delta that is trimmed; `RecipeError` under `rescale`."""
        needs = tuple((TrimNeed(number(term.parameters, "density")),) if is_sparse(term) else () for term in spec.terms)
        if spec.parameters["rescale"] and any(needs):
            raise RecipeError(
                f"{spec.name}: ties with rescale: true and a density below 1 is not supported yet; "
                "remove rescale (mergekit's default is false) or use dare_ties, which rescales"
            )
        return needs

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> TiesCoefficients:
        """Coefficients; `RecipeError` under `rescale`."""
        trims = tuple(Trim.of(known[0]) if need else None for need, known in zip(self.needs(spec), facts, strict=True))
        return TiesCoefficients(resolve_election(spec), trims)

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms)

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        trims: tuple[Trim | None, ...] = coefficients.trims

        def write(term: int, delta: Delta, into: Array) -> None:
            delta(into)
            trim = trims[term]
            if trim is not None:
                trim.apply(tile, into)

        elect(tile, coefficients.election, write, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return election_gains(coefficients.election, [1.0] * len(coefficients.trims))

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads) -> Norms | str:
        return election_bound(coefficients.election, [1.0] * len(coefficients.trims), norms, read)


OPERATORS: tuple[Operator, ...] = (Ties(),)
