"""Spherical interpolation between the base (t = 0) and one other model (t = 1), each tensor as one vector.

With θ the angle between them: `[sin((1−t)θ) θ₀ + sin(tθ) θ₁] / sin θ`, which is not renormalised. Tensors that
are nearly parallel, `|cos θ| > 0.9995`, are interpolated linearly. As mergekit has it, a tensor of norm up
to 1e-8 is not normalised before its cosine is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter, TensorSpec
from mergepipe.operators.formula import Formula
from mergepipe.operators.geometry import (
    Resolved,
    along_arc,
    arc,
    combination,
    gram_need,
    gram_of,
    models,
    shortened,
)
from mergepipe.operators.parameters import number
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed

_PARALLEL = 0.9995
_VANISHING = 1e-8


class Slerp(Resolved):
    """The method `slerp`."""

    name = "slerp"
    version = "slerp@mergekit"
    needs_base = True
    parameters = (Parameter("t", float, doc="where between the base (0) and the other model (1)"),)
    doc = "θ = [sin((1−t)φ) θ₀ + sin(tφ) θ₁] / sin φ, φ the angle between them (Shoemake, 1985)"

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        """Inner products over the tensor; `RecipeError` unless there is one model beside the base."""
        if len(spec.terms) != 1:
            raise RecipeError(
                f"{spec.name}: slerp merges the base with exactly one other model, found {len(spec.terms)}; "
                "use multislerp or karcher for more"
            )
        return (gram_need(spec, None),)

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        self.group_needs(spec)
        found = arc(gram_of(spec, group_facts[0]), *models(1))
        left, right = (np.where(each > _VANISHING, 1.0, each) for each in found.lengths)
        found = shortened(found, left * right)
        _, second, total = along_arc(found, number(spec.parameters, "t"), np.abs(found.cosine) > _PARALLEL)
        return combination(spec, float(total[0]), [float(second[0])])


OPERATORS: tuple[Operator, ...] = (Slerp(),)
