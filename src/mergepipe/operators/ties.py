"""TIES: keep the largest entries of each tensor's task vector, elect a sign per element, merge what agrees."""

from __future__ import annotations

from collections.abc import Sequence

from mergepipe.operators.consensus import (
    resolve_election,
    scratch_arrays,
)
from mergepipe.operators.contract import (
    AccessClass,
    Grain,
    Operator,
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
from mergepipe.operators.sparsify import Band, Trim, restoring
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need, TrimmedL1Need, TrimNeed


class Ties(FormulaMethod):
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
        rescale(False, "give what is kept the L1 norm of the whole task vector"),
        INT8_MASK,
    )
    doc = "θ = θ₀ + λ Σ wᵢxᵢ / Σ wᵢ over the elected sign, xᵢ the trimmed δᵢ (arXiv:2306.01708)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """Threshold and cut of each delta that is trimmed; under `rescale` its sums too."""
        return tuple(_needs(spec, term) if is_sparse(term) else () for term in spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        trims = tuple(_trim(spec, term, known) for term, known in zip(spec.terms, facts, strict=True))
        return Formula(resolve_election(spec, densities_of(spec)), trims)

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms)


def _needs(spec: TensorSpec, term: TermSpec) -> tuple[Need, ...]:
    density = number(term.parameters, "density")
    if spec.parameters["rescale"]:
        return TrimNeed(density), TrimmedL1Need(density)
    return (TrimNeed(density),)


def _trim(spec: TensorSpec, term: TermSpec, known: Sequence[Fact]) -> Band | None:
    if not is_sparse(term):
        return None
    factor = 1.0
    if spec.parameters["rescale"]:
        factor = restoring(known[1]["l1"], known[1]["kept_l1"])
        factor = to_tile(factor, spec, f"the rescale factor of expert {term.position + 1}")
    return Band(Trim.of(known[0]), None, factor)


OPERATORS: tuple[Operator, ...] = (Ties(),)
