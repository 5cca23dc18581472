"""Weighted average of models: `θ = Σ wᵢθᵢ`, divided by `Σ wᵢ` under `normalize`.

Around the base `θ₀`, with `a₀ = Σ wᵢ` over all inputs (the base's own weight included, 0 if it is no
input): `θ = a₀θ₀ + Σ wᵢδᵢ`; under `normalize` `a₀` is 1 exactly and `cᵢ = wᵢ/Σw`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mergepipe.errors import RecipeError
from mergepipe.operators.additive import Mixture
from mergepipe.operators.contract import (
    AccessClass,
    Grain,
    Operator,
    TensorSpec,
)
from mergepipe.operators.formula import Formula, FormulaMethod
from mergepipe.operators.parameters import WEIGHT, normalize, number, tile_weights, to_tile, weights_of
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need

# Weights whose sum is this small beside them would blow up what float32 can say of the deltas.
_CANCELLING = 1e-8


class Linear(FormulaMethod):
    """The method `linear`."""

    name = "linear"
    version = "linear@mergekit"
    access = AccessClass.ADDITIVE
    grain = Grain.ELEMENT
    needs_base = False
    parameters = (WEIGHT, normalize(True))
    doc = "θ = Σ wᵢθᵢ / Σ wᵢ (model soups, arXiv:2203.05482)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        """Coefficients; `RecipeError` where weights to be normalised add up to nothing."""
        given = weights_of(spec)
        every = given if spec.reference is None else [number(spec.reference, "weight"), *given]
        total = math.fsum(every)
        if not spec.parameters["normalize"]:
            return Formula.of_whole(
                Mixture(tile_weights(given, spec), base=to_tile(total, spec, "the sum of the weights"))
            )
        if abs(total) <= _CANCELLING * math.fsum(map(abs, every)):
            raise RecipeError(
                f"{spec.name}: the weights {', '.join(f'{weight:g}' for weight in every)} add up to {total:g}, "
                "so they cannot be normalized; change a weight or set normalize: false"
            )
        return Formula.of_whole(Mixture(tile_weights([weight / total for weight in given], spec)))

    def scratch_arrays(self, terms: int) -> int:
        return 1


OPERATORS: tuple[Operator, ...] = (Linear(),)
