"""DELLA: drop entries of the task vectors at random, small ones of their row sooner; rescale what is left.

The entry of rank r (from 0, by magnitude) of a row of R is kept with probability `p − ε + 2ε·r/(R − 1)`. A
row is the last dimension; a vector is one row. The mask depends on seed, expert, output tensor, element
position and the row's own magnitudes only.
"""

from __future__ import annotations

from collections.abc import Sequence

from mergepipe.core.random import mask_key
from mergepipe.errors import RecipeError
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
    row_of,
    to_tile,
)
from mergepipe.operators.sparsify import RankedDrop, restoring
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need, RankedMaskL1Need

# Ranking takes sort keys and positions in eight bytes, and random numbers in two, beside the mask.
_RANKING_ARRAYS = 4


def _parameters(normalized: bool) -> tuple[Parameter, ...]:
    return (
        WEIGHT,
        DENSITY,
        Parameter(
            "epsilon",
            float,
            0.15,
            per_model=True,
            low=0.0,
            high=0.5,
            doc="keep probabilities run from density − epsilon to density + epsilon",
        ),
        LAMBDA,
        normalize(normalized),
        rescale(True, "give what is kept the L1 norm of the whole task vector"),
        INT8_MASK,
    )


class Della(FormulaMethod):
    """The method `della`."""

    name = "della"
    version = "della@mergekit"
    access = AccessClass.SIGN_ELECTED
    grain = Grain.ROW
    needs_base = True
    parameters = _parameters(normalized=True)
    doc = "θ = θ₀ + λ Σ wᵢxᵢ / Σ wᵢ over the elected sign, xᵢ as in della_linear (arXiv:2406.11617)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """Sums for the rescale; `RecipeError` where keep probabilities leave (0, 1)."""
        return _needs(spec)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        """Coefficients; `RecipeError` where keep probabilities leave (0, 1)."""
        return Formula(resolve_election(spec, densities_of(spec)), _drops(spec, facts))

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms) + _RANKING_ARRAYS


class DellaLinear(FormulaMethod):
    """The method `della_linear`."""

    name = "della_linear"
    version = "della_linear@mergekit"
    access = AccessClass.ADDITIVE
    grain = Grain.ROW
    needs_base = True
    parameters = _parameters(normalized=False)
    doc = "θ = θ₀ + λ Σ wᵢ fᵢ (δᵢ∘mᵢ) [/ Σ wᵢ], mᵢ random by rank in the row, fᵢ a rescale factor (arXiv:2406.11617)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """Sums for the rescale; `RecipeError` where keep probabilities leave (0, 1)."""
        return _needs(spec)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        """Coefficients; `RecipeError` where keep probabilities leave (0, 1)."""
        return Formula(resolve_mixture(spec, densities_of(spec)), _drops(spec, facts))

    def scratch_arrays(self, terms: int) -> int:
        """A term, its mask, and what ranking takes."""
        return 2 + _RANKING_ARRAYS


def _check(spec: TensorSpec, term: TermSpec) -> None:
    density, epsilon = number(term.parameters, "density"), number(term.parameters, "epsilon")
    if 0.0 < density < 1.0 and not (density - epsilon > 0.0 and density + epsilon < 1.0):
        raise RecipeError(
            f"{spec.name}: density {density:g} and epsilon {epsilon:g} of expert {term.position + 1} give keep "
            f"probabilities from {density - epsilon:g} to {density + epsilon:g}, which must lie between 0 and 1; "
            f"set epsilon below {min(density, 1.0 - density):g} or change density"
        )


def _key(spec: TensorSpec, term: TermSpec) -> int:
    return mask_key(spec.seed, "della", term.position, spec.name)


def _needs(spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
    needs: list[tuple[Need, ...]] = []
    for term in spec.terms:
        _check(spec, term)
        wanted: tuple[Need, ...] = ()
        if spec.parameters["rescale"] and is_sparse(term):
            density, epsilon = number(term.parameters, "density"), number(term.parameters, "epsilon")
            wanted = (RankedMaskL1Need(_key(spec, term), density, epsilon, row_of(spec)),)
        needs.append(wanted)
    return tuple(needs)


def _drops(spec: TensorSpec, facts: Sequence[Sequence[Fact]]) -> tuple[RankedDrop | None, ...]:
    drops: list[RankedDrop | None] = []
    for term, known in zip(spec.terms, facts, strict=True):
        _check(spec, term)
        if not is_sparse(term):
            drops.append(None)
            continue
        factor = restoring(known[0]["l1"], known[0]["masked_l1"]) if spec.parameters["rescale"] else 1.0
        drops.append(
            RankedDrop(
                key=_key(spec, term),
                density=number(term.parameters, "density"),
                epsilon=number(term.parameters, "epsilon"),
                row=row_of(spec),
                factor=to_tile(factor, spec, f"the rescale factor of expert {term.position + 1}"),
            )
        )
    return tuple(drops)


OPERATORS: tuple[Operator, ...] = (Della(), DellaLinear())
