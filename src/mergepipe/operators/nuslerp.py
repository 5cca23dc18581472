"""Spherical interpolation of two models by weight, or of their task vectors where the recipe names a base.

`t = w₂/(w₁+w₂)` (0.5 where the sum vanishes); x and y are the task vectors or the models, as one vector
(`nuslerp_flatten`, the default), or each vector of the last dimension, or with `nuslerp_row_wise` of the
first, for itself: `[sin((1−t)θ) x + sin(tθ) y] / sin θ`, not renormalised; linear where x and y are parallel
or, to float32, opposite. As mergekit has it, norms below 1e-7 count as 1e-7 in the cosine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter, TensorSpec
from mergepipe.operators.formula import Formula
from mergepipe.operators.geometry import (
    Resolved,
    VectorCombination,
    along_arc,
    arc,
    deltas,
    gram_need,
    gram_of,
    models,
    nearly_opposite,
    shortened,
    vector_combination,
)
from mergepipe.operators.parameters import WEIGHT, number, weights_of
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed

_SMALLEST_NORM = 1e-7
_NO_SUM = 1e-6


class NuSlerp(Resolved):
    """The method `nuslerp`."""

    name = "nuslerp"
    version = "nuslerp@mergekit"
    needs_base = False
    parameters = (
        WEIGHT,
        Parameter("nuslerp_flatten", bool, True, doc="interpolate the tensor as one vector"),
        Parameter("nuslerp_row_wise", bool, False, doc="unflattened: vectors of the first dimension, not the last"),
    )
    doc = "slerp of θ₁ and θ₂, or θ₀ + slerp of δ₁ and δ₂, at t = w₂/(w₁+w₂); whole or by rows or columns (mergekit)"

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        """Inner products of the whole or of each vector; `RecipeError` unless two models are interpolated."""
        found = len(spec.terms) + (spec.reference is not None)
        if found != 2:
            raise RecipeError(
                f"{spec.name}: nuslerp interpolates exactly two models (base_model not counted), found {found}; "
                "use multislerp or karcher for more"
            )
        return (gram_need(spec, _axis(spec)),)

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula | VectorCombination:
        self.group_needs(spec)
        axis = _axis(spec)
        weights = weights_of(spec)
        if spec.reference is not None:
            weights = [number(spec.reference, "weight"), *weights]
        total = weights[0] + weights[1]
        t = 0.5 if abs(total) < _NO_SUM else weights[1] / total

        points = deltas(2) if spec.reference is None else models(1)
        found = arc(gram_of(spec, group_facts[0], axis), *points)
        left, right = (np.where(each >= _SMALLEST_NORM, 1.0, each / _SMALLEST_NORM) for each in found.lengths)
        found = shortened(found, left * right)
        first, second, both = along_arc(found, t, nearly_opposite(found))
        if spec.reference is None:
            return vector_combination(spec, axis, np.ones_like(both), (first, second))
        return vector_combination(spec, axis, both, (second,))


def _axis(spec: TensorSpec) -> int | None:
    if spec.parameters["nuslerp_flatten"]:
        return None
    return 0 if spec.parameters["nuslerp_row_wise"] else -1


OPERATORS: tuple[Operator, ...] = (NuSlerp(),)
