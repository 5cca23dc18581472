"""Task arithmetic: `θ = θ₀ + λ Σ wᵢδᵢ`, the sum divided by `Σ wᵢ` under `normalize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mergepipe.core.arrays import Array
from mergepipe.operators.additive import Mixture, mix, omitted_sum, resolve_mixture, write_whole
from mergepipe.operators.contract import AccessClass, Grain, Norms, Operator, Parameter, Reads, Sizes, TensorSpec, Tile
from mergepipe.operators.parameters import INT8_MASK, LAMBDA, WEIGHT, normalize, rescale
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need


class TaskArithmetic:
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
    ) -> Mixture:
        return resolve_mixture(spec, [1.0] * len(spec.terms))

    def scratch_arrays(self, terms: int) -> int:
        return 1

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        mix(tile, coefficients, write_whole, out)

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        gains: tuple[float, ...] = coefficients.gains
        return gains

    def exact_gains(self, coefficients: Any) -> bool:
        return True

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        return omitted_sum(self.gains(coefficients), norms, read)


OPERATORS: tuple[Operator, ...] = (TaskArithmetic(),)
