"""Model Breadcrumbs: of each tensor's task vector, leave out the smallest entries and the few largest.

With n elements, `target = int(p·n)` entries are kept. `int(γ·n)` of the largest go first, then the
smallest; where that would leave less than `target`, fewer of the largest go. A density of 1 keeps all,
outliers too. Of equal magnitudes the earlier count as larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from mergepipe.operators.sparsify import Band, Trim, restoring
from mergepipe.stats.contract import BandL1Need, Fact, GroupFact, GroupNeed, Need, RankNeed

_PARAMETERS: tuple[Parameter, ...] = (
    WEIGHT,
    DENSITY,
    Parameter(
        "gamma", float, 0.01, per_model=True, low=0.0, high=1.0, doc="fraction of the largest entries left out first"
    ),
    LAMBDA,
    normalize(False),
    rescale(False, "give what is kept the L1 norm of the whole task vector"),
    INT8_MASK,
)


class Breadcrumbs(FormulaMethod):
    """The method `breadcrumbs`."""

    name = "breadcrumbs"
    version = "breadcrumbs@mergekit"
    access = AccessClass.ADDITIVE
    grain = Grain.ELEMENT
    needs_base = True
    parameters = _PARAMETERS
    doc = "θ = θ₀ + λ Σ wᵢxᵢ [/ Σ wᵢ], xᵢ = δᵢ without its smallest and largest entries (arXiv:2312.06795)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return _needs(spec)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        return Formula(resolve_mixture(spec, _kept_shares(spec)), _bands(spec, facts))

    def scratch_arrays(self, terms: int) -> int:
        """A term and its mask (floats and two of flags)."""
        return 3


class BreadcrumbsTies(FormulaMethod):
    """The method `breadcrumbs_ties`."""

    name = "breadcrumbs_ties"
    version = "breadcrumbs_ties@mergekit"
    access = AccessClass.SIGN_ELECTED
    grain = Grain.ELEMENT
    needs_base = True
    parameters = _PARAMETERS
    doc = "θ = θ₀ + λ Σ wᵢxᵢ [/ Σ wᵢ] over the elected sign, xᵢ as in breadcrumbs (arXiv:2312.06795)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return _needs(spec)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        return Formula(resolve_election(spec, _kept_shares(spec)), _bands(spec, facts))

    def scratch_arrays(self, terms: int) -> int:
        return scratch_arrays(terms)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Which ranks, from the largest down, are kept: `kept` of them after the `skipped` largest."""

    skipped: int
    kept: int

    @classmethod
    def of(cls, spec: TensorSpec, term: TermSpec) -> _Ranks:
        elements = spec.elements
        kept = int(number(term.parameters, "density") * elements)
        top = int(number(term.parameters, "gamma") * elements)
        smallest = max(0, elements - kept - top)
        return cls(elements - smallest - kept, kept)

    def needs(self, elements: int, rescale: bool) -> tuple[Need, ...]:
        """Outer rank, inner rank, sums: of each what is needed."""
        if not self.kept:
            return ()
        outer = self.skipped + self.kept
        needs: list[Need] = []
        if outer < elements:
            needs.append(RankNeed(outer))
        if self.skipped:
            needs.append(RankNeed(self.skipped))
        if rescale:
            needs.append(BandL1Need(self.skipped, self.kept))
        return tuple(needs)


def _kept_shares(spec: TensorSpec) -> list[float]:
    """The densities; 0 also where a density is too low to keep a single entry."""
    return [density if int(density * spec.elements) else 0.0 for density in densities_of(spec)]


def _needs(spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
    rescaled = bool(spec.parameters["rescale"])
    return tuple(_Ranks.of(spec, term).needs(spec.elements, rescaled) if is_sparse(term) else () for term in spec.terms)


def _bands(spec: TensorSpec, facts: Sequence[Sequence[Fact]]) -> tuple[Band | None, ...]:
    bands: list[Band | None] = []
    for term, needs, known in zip(spec.terms, _needs(spec), facts, strict=True):
        if not needs:
            bands.append(None)
            continue
        outer = inner = None
        factor = 1.0
        skipped = _Ranks.of(spec, term).skipped
        for need, fact in zip(needs, known, strict=True):
            if isinstance(need, BandL1Need):
                factor = restoring(fact["l1"], fact["kept_l1"])
                factor = to_tile(factor, spec, f"the rescale factor of expert {term.position + 1}")
            elif need == RankNeed(skipped):
                inner = Trim.of(fact)
            else:
                outer = Trim.of(fact)
        bands.append(Band(outer, inner, factor))
    return tuple(bands)


OPERATORS: tuple[Operator, ...] = (Breadcrumbs(), BreadcrumbsTies())
