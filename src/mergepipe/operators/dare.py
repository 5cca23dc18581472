"""DARE: drop entries of the task vectors at random, rescale what is left; then add, or elect signs.

The mask depends on seed, expert, output tensor and element position only. mergekit rescales by
`‖δ‖₁ / ‖δ∘m‖₁` of the tensor, the paper (arXiv:2311.03099) by `1/p`, which needs no fact.
"""

from __future__ import annotations

from collections.abc import Sequence

from mergepipe.core.random import mask_key
from mergepipe.operators.additive import resolve_mixture
from mergepipe.operators.consensus import (
    resolve_election,
    scratch_arrays,
)
from mergepipe.operators.contract import (
    AccessClass,
    Grain,
    Operator,
    Parameter,
    TensorSpec,
    TermSpec,
)
from mergepipe.operators.formula import Formula, FormulaMethod
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


class DareLinear(FormulaMethod):
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
    ) -> Formula:
        return Formula(resolve_mixture(spec, densities_of(spec)), _drops(spec, self._variant, facts))

    def scratch_arrays(self, terms: int) -> int:
        """A term and its mask."""
        return 2


class DareTies(FormulaMethod):
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
    ) -> Formula:
        return Formula(resolve_election(spec, densities_of(spec)), _drops(spec, self._variant, facts))

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms)


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


OPERATORS: tuple[Operator, ...] = (DareLinear(MERGEKIT), DareTies(MERGEKIT), DareLinear(PAPER), DareTies(PAPER))
