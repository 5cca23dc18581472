"""DARE: drop entries of the task vectors at random, rescale what is left; then add, or elect signs.

The mask depends on seed, expert, output tensor and element position only. mergekit rescales by
`‖δ‖₁ / ‖δ∘m‖₁` of the tensor, the paper (arXiv:2311.03099) by `1/p`, which needs no fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mergepipe.core.arrays import Array
from mergepipe.core.random import mask_key
from mergepipe.operators.additive import Mixture, mix, omitted_sum, resolve_mixture
from mergepipe.operators.consensus import (
    Election,
    elect,
    election_bound,
    election_gains,
    resolve_election,
    scratch_arrays,
)
from mergepipe.operators.contract import (
    AccessClass,
    Delta,
    Grain,
    Norms,
    Operator,
    Parameter,
    Reads,
    Sizes,
    TensorSpec,
    TermSpec,
    Tile,
)
from mergepipe.operators.parameters import (
    DENSITY,
    INT8_MASK,
    LAMBDA,
    WEIGHT,
    densities_of,
    is_sparse,
    normalize,
    number,
    rescale,
    to_tile,
)
from mergepipe.operators.sparsify import Drop, restoring
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, MaskedL1Need, Need

MERGEKIT = "mergekit"
PAPER = "paper"

_PARAMETERS: tuple[Parameter, ...] = (
    WEIGHT,
    DENSITY,
    LAMBDA,
    normalize(False),
    rescale(True, "make up for what is dropped"),
    INT8_MASK,
)


@dataclass(frozen=True, slots=True)
class DareLinearCoefficients:
    """The mixture and each term's drop, None where the whole delta (or, of an inert term, nothing) counts."""

    mixture: Mixture
    drops: tuple[Drop | None, ...]


@dataclass(frozen=True, slots=True)
class DareTiesCoefficients:
    """The election and each term's drop, None where the whole delta (or, of an inert term, nothing) counts."""

    election: Election
    drops: tuple[Drop | None, ...]


class DareLinear:
    """The method `dare_linear` in one of its variants, `"mergekit"` or `"paper"`."""

    name = "dare_linear"
    access = AccessClass.ADDITIVE
    grain = Grain.ELEMENT
    needs_base = True
    parameters = _PARAMETERS
    doc = "θ = θ₀ + λ Σ wᵢ fᵢ (δᵢ∘mᵢ) [/ Σ wᵢ], mᵢ random, fᵢ its rescale factor (arXiv:2311.03099)"

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self.version = f"{self.name}@{variant}"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return _needs(spec, self._variant)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> DareLinearCoefficients:
        return DareLinearCoefficients(resolve_mixture(spec, densities_of(spec)), _drops(spec, self._variant, facts))

    def scratch_arrays(self, terms: int) -> int:
        """A term and its mask."""
        return 2

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        drops: tuple[Drop | None, ...] = coefficients.drops
        mix(tile, coefficients.mixture, lambda term, delta, into: _write(tile, drops[term], delta, into), out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        mixed = zip(coefficients.mixture.gains, _factors(coefficients.drops), strict=True)
        return tuple(gain * factor for gain, factor in mixed)

    def exact_gains(self, coefficients: Any) -> bool:
        """Only where nothing is dropped."""
        return all(drop is None for drop in coefficients.drops)

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return omitted_sum(self.gains(coefficients), norms, read)


class DareTies:
    """The method `dare_ties` in one of its variants, `"mergekit"` or `"paper"`."""

    name = "dare_ties"
    access = AccessClass.SIGN_ELECTED
    grain = Grain.ELEMENT
    needs_base = True
    parameters = _PARAMETERS
    doc = "θ = θ₀ + λ Σ wᵢxᵢ [/ Σ wᵢ] over the elected sign, xᵢ = fᵢ (δᵢ∘mᵢ) as in dare_linear (arXiv:2311.03099)"

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self.version = f"{self.name}@{variant}"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return _needs(spec, self._variant)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> DareTiesCoefficients:
        return DareTiesCoefficients(resolve_election(spec, densities_of(spec)), _drops(spec, self._variant, facts))

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms)

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        drops: tuple[Drop | None, ...] = coefficients.drops
        elect(tile, coefficients.election, lambda term, delta, into: _write(tile, drops[term], delta, into), out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return election_gains(coefficients.election, _factors(coefficients.drops))

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return election_bound(coefficients.election, _factors(coefficients.drops), norms, read)


def _density(term: TermSpec) -> float:
    return number(term.parameters, "density")


def _key(spec: TensorSpec, term: TermSpec) -> int:
    return mask_key(spec.seed, "dare", term.position, spec.name)


def _needs(spec: TensorSpec, variant: str) -> tuple[tuple[Need, ...], ...]:
    if variant == PAPER or not spec.parameters["rescale"]:
        return ((),) * len(spec.terms)
    return tuple((MaskedL1Need(_key(spec, term), _density(term)),) if is_sparse(term) else () for term in spec.terms)


def _drops(spec: TensorSpec, variant: str, facts: Sequence[Sequence[Fact]]) -> tuple[Drop | None, ...]:
    drops: list[Drop | None] = []
    for term, known in zip(spec.terms, facts, strict=True):
        if not is_sparse(term):
            drops.append(None)
            continue
        density = _density(term)
        factor = 1.0
        if spec.parameters["rescale"]:
            factor = 1.0 / density if variant == PAPER else restoring(known[0]["l1"], known[0]["masked_l1"])
        factor = to_tile(factor, spec, f"the rescale factor of expert {term.position + 1}")
        drops.append(Drop(_key(spec, term), density, factor))
    return tuple(drops)


def _factors(drops: Sequence[Drop | None]) -> list[float]:
    return [1.0 if drop is None else drop.factor for drop in drops]


def _write(tile: Tile, drop: Drop | None, delta: Delta, into: Array) -> None:
    delta(into)
    if drop is not None:
        drop.apply(tile, into)


OPERATORS: tuple[Operator, ...] = (DareLinear(MERGEKIT), DareTies(MERGEKIT), DareLinear(PAPER), DareTies(PAPER))
