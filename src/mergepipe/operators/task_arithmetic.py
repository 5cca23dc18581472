"""Task arithmetic: `θ = θ₀ + λ Σ wᵢδᵢ`, the sum divided by `Σ wᵢ` under `normalize`."""

from __future__ import annotations

from collections.abc import Sequence

from mergepipe.operators.additive import resolve_mixture
from mergepipe.operators.contract import AccessClass, Grain, Operator, Parameter, TensorSpec
from mergepipe.operators.formula import Formula, FormulaMethod
from mergepipe.operators.parameters import INT8_MASK, LAMBDA, WEIGHT, normalize, rescale
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need


class TaskArithmetic(FormulaMethod):
    """The method `task_arithmetic`."""

    name = "task_arithmetic"
    version = "task_arithmetic@mergekit"
    access = AccessClass.ADDITIVE
    grain = Grain.ELEMENT
    needs_base = True
    parameters = (
        WEIGHT,
        Parameter("density", float, 1.0, per_model=True, doc="accepted for mergekit's sake, without effect"),
        LAMBDA,
        normalize(False),
        rescale(False, "accepted for mergekit's sake, without effect: nothing is dropped"),
        INT8_MASK,
    )
    doc = "θ = θ₀ + λ Σ wᵢδᵢ [/ Σ wᵢ] (arXiv:2212.04089)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        return Formula.of_whole(resolve_mixture(spec, [1.0] * len(spec.terms)))

    def scratch_arrays(self, terms: int) -> int:
        return 1


OPERATORS: tuple[Operator, ...] = (TaskArithmetic(),)
