"""Weighted mean direction at the weighted mean norm, of models, or of task vectors where the recipe names a base.

With `uᵢ = dᵢ/(‖dᵢ‖+eps)` and `m = Σ wᵢuᵢ`, mergekit maps the uᵢ to the tangent space at `m/‖m‖`, averages them
there with the same weights, and maps back. That average is `m − ⟨m, m/‖m‖⟩ m/‖m‖ = 0` whatever the inputs, so
what it computes, but for float32 noise, is `(Σ wᵢ‖dᵢ‖) cos(eps) m/‖m‖`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter, TensorSpec
from mergepipe.operators.formula import Formula
from mergepipe.operators.geometry import (
    Resolved,
    combination,
    deltas,
    gram_need,
    length,
    models,
    whole_gram,
)
from mergepipe.operators.parameters import WEIGHT, number, weights_of
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed

# As in linear: weights whose sum is this small beside them cannot be normalised.
_CANCELLING = 1e-8
# The mean of unit vectors that cancel to this share of their lengths is rounding noise, to mergekit's float32
# and, since its square comes from the inner products, to float64 too.
_CANCELLED = 1e-7


class MultiSlerp(Resolved):
    """The method `multislerp`."""

    name = "multislerp"
    version = "multislerp@mergekit"
    needs_base = False
    parameters = (
        WEIGHT,
        Parameter("normalize_weights", bool, True, doc="divide the weights by their sum"),
        Parameter("eps", float, 1e-8, low=0.0, doc="added to norms; below it the mean direction counts as none"),
    )
    doc = "θ = [θ₀ +] (Σ wᵢ‖dᵢ‖) m/‖m‖, m = Σ wᵢdᵢ/‖dᵢ‖ of task vectors or models (mergekit)"

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        """Inner products over the tensor; `RecipeError` where weights to be normalised add up to nothing."""
        _weights(spec)
        return (gram_need(spec, None),)

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        if not spec.terms:
            return combination(spec, 1.0, ())  # one model is itself
        weights = _weights(spec)
        factors = _factors(spec, weights, group_facts[0])
        if spec.reference is None:
            return combination(spec, 1.0, factors)
        # Normalised weights add up to 1, but for rounding.
        averaged = factors == weights and spec.parameters["normalize_weights"]
        return combination(spec, 1.0 if averaged else math.fsum(factors), factors[1:])


def _factors(spec: TensorSpec, weights: list[float], fact: GroupFact) -> list[float]:
    """The factor of each dᵢ."""
    if len(weights) == 1:
        return [1.0]
    terms = len(spec.terms)
    gram, eps = whole_gram(spec, fact), number(spec.parameters, "eps")
    points = deltas(terms) if spec.reference is None else models(terms)
    norms = [length(gram, point) for point in points]
    shares = [weight / (norm + eps) if norm else 0.0 for weight, norm in zip(weights, norms, strict=True)]
    mean = [sum(share * point[n] for share, point in zip(shares, points, strict=True)) for n in range(terms + 1)]
    mean_length = length(gram, mean)
    lengths = math.fsum(abs(share) * norm for share, norm in zip(shares, norms, strict=True))
    if mean_length < eps or mean_length <= _CANCELLED * lengths:
        return weights
    scale = math.fsum(weight * norm for weight, norm in zip(weights, norms, strict=True)) * math.cos(eps) / mean_length
    return [scale * share for share in shares]


def _weights(spec: TensorSpec) -> list[float]:
    """The weights of the dᵢ, normalised if asked."""
    given = weights_of(spec)
    if spec.reference is not None:
        given = [number(spec.reference, "weight"), *given]
    if not spec.parameters["normalize_weights"] or len(given) == 1:
        return given
    total = math.fsum(given)
    if abs(total) <= _CANCELLING * math.fsum(map(abs, given)):
        raise RecipeError(
            f"{spec.name}: the weights {', '.join(f'{weight:g}' for weight in given)} add up to {total:g}, "
            "so they cannot be normalized; change a weight or set normalize_weights: false"
        )
    return [weight / total for weight in given]


OPERATORS: tuple[Operator, ...] = (MultiSlerp(),)
