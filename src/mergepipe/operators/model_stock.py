"""Model Stock: from the base towards the mean of the fine-tunes, as far as the angle between their task vectors says.

With c the mean cosine of all pairs of the N task vectors: `t = Nc / (1 + (N−1)c)`, `θ = θ₀ + t (Σ δᵢ)/N`, for each
tensor or, with `filter_wise`, for each of its rows. As mergekit 0.1.5 has it: products of norms below 1e-6
count as 1e-6, t is not limited, and is 0 where its denominator vanishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter, TensorSpec
from mergepipe.operators.formula import Formula
from mergepipe.operators.geometry import (
    Resolved,
    VectorCombination,
    gram_need,
    gram_of,
    vector_combination,
)
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed

_SMALLEST_PRODUCT = 1e-6
_SINGULAR = 1e-6


class ModelStock(Resolved):
    """The method `model_stock`."""

    name = "model_stock"
    version = "model_stock@mergekit"
    needs_base = True
    parameters = (Parameter("filter_wise", bool, False, doc="a ratio of its own for each row of the last dimension"),)
    doc = "θ = θ₀ + t (Σ δᵢ)/N, t = Nc/(1+(N−1)c), c the mean cosine of the δᵢ (arXiv:2403.19522)"

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        """Inner products of the whole or of each row; `RecipeError` for fewer than two models beside the base."""
        if len(spec.terms) < 2:
            raise RecipeError(
                f"{spec.name}: model_stock compares at least two models with the base, found {len(spec.terms)}; "
                "name one more under models"
            )
        return (gram_need(spec, _axis(spec)),)

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula | VectorCombination:
        self.group_needs(spec)
        axis, count = _axis(spec), len(spec.terms)
        gram = gram_of(spec, group_facts[0], axis)
        norms = [np.sqrt(np.maximum(gram[n][n], 0.0)) for n in range(1, count + 1)]
        pairs = list(combinations(range(count), 2))
        total = np.zeros_like(norms[0])
        for i, j in pairs:
            product = np.maximum(norms[i] * norms[j], _SMALLEST_PRODUCT)
            total += np.clip(gram[i + 1][j + 1] / product, -1.0, 1.0)
        cosine = total / len(pairs)
        denominator = 1.0 + (count - 1) * cosine
        singular = np.abs(denominator) < _SINGULAR
        ratio = np.where(singular, 0.0, count * cosine / np.where(singular, 1.0, denominator))
        return vector_combination(spec, axis, np.ones_like(ratio), [ratio / count] * count)


def _axis(spec: TensorSpec) -> int | None:
    return -1 if spec.parameters["filter_wise"] else None


OPERATORS: tuple[Operator, ...] = (ModelStock(),)
