"""Karcher (Riemannian) mean of all models, `base_model` included, as unit vectors, at their mean norm.

From the normalised mean of the directions u: `T = (1/K) Σ (φᵢ/sin φᵢ)(uᵢ − cos φᵢ·μ)` with φᵢ the angle to μ, then
`μ ← cos‖T‖ μ + sin‖T‖ T/‖T‖`, until `‖T‖ < tol` or `max_iter` times. All of it in coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mergepipe.operators.contract import Operator, Parameter, TensorSpec
from mergepipe.operators.formula import Formula
from mergepipe.operators.geometry import (
    Gram,
    Point,
    Resolved,
    combination,
    gram_need,
    inner,
    length,
    models,
    whole_gram,
)
from mergepipe.operators.parameters import number
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed

# A direction as close as this to opposite has no one way towards it.
_OPPOSITE = 1e-7


class Karcher(Resolved):
    """The method `karcher`."""

    name = "karcher"
    version = "karcher@mergekit"
    needs_base = False
    parameters = (
        Parameter("max_iter", int, 10, low=0.0, doc="most steps towards the mean"),
        Parameter("tol", float, 1e-5, low=0.0, doc="below it a step, an angle or a norm counts as nothing"),
    )
    doc = "θ = (Σ‖θᵢ‖/K) μ, μ the Karcher mean of all directions θᵢ/‖θᵢ‖, base included (arXiv:2603.04972)"

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return (gram_need(spec, None),)

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> Formula:
        if not spec.terms:
            return combination(spec, 1.0, ())  # one model is itself
        tol = number(spec.parameters, "tol")
        gram = whole_gram(spec, group_facts[0])
        points = models(len(spec.terms))
        if spec.reference is None:
            # Where directions cancel, the first one counts; a base that is only named comes last.
            points = [*points[1:], points[0]]
        norms = [length(gram, point) for point in points]
        units = [_scaled(1.0 / norm, point) for point, norm in zip(points, norms, strict=True) if norm > tol]
        if not units:
            return combination(spec, 1.0, [1.0 / len(points)] * len(spec.terms))
        mean = _mean(gram, units, int(spec.parameters["max_iter"]), tol)
        base, *terms = _scaled(math.fsum(norms) / len(norms), mean)
        return combination(spec, base, terms)


def _mean(gram: Gram[float], units: Sequence[Point], max_iter: int, tol: float) -> Point:
    """The mean of unit vectors on the sphere."""
    mean = _scaled(1.0 / len(units), _total(units))
    size = length(gram, mean)
    mean = units[0] if size < tol or size == 0.0 else _scaled(1.0 / size, mean)
    for _ in range(max_iter):
        tangent = _scaled(1.0 / len(units), _total([_logarithm(gram, mean, unit, tol) for unit in units]))
        step = length(gram, tangent)
        if step < tol or step == 0.0:
            break
        mean = _total([_scaled(math.cos(step), mean), _scaled(math.sin(step) / step, tangent)])
        mean = _scaled(1.0 / length(gram, mean), mean)
    return mean


def _logarithm(gram: Gram[float], mean: Point, unit: Point, tol: float) -> Point:
    """The tangent at `mean` that leads to `unit`; nothing within `tol` of it, nor at the opposite point."""
    apart = _total([unit, _scaled(-1.0, mean)])
    square = max(inner(gram, apart, apart), 0.0)
    together = length(gram, _total([unit, mean]))
    # Kahan's angle: exact near 0 and π, where the arc cosine is not.
    angle = 2.0 * math.atan2(math.sqrt(square), together)
    if angle < tol or angle == 0.0 or together < _OPPOSITE:
        return (0.0,) * len(mean)
    # uᵢ − cos φᵢ·μ, with 1 − cos φᵢ from the chord.
    across = _total([apart, _scaled(square / 2.0, mean)])
    return _scaled(angle / math.sin(angle), across)


def _scaled(factor: float, point: Point) -> Point:
    return tuple(factor * each for each in point)


def _total(points: Sequence[Point]) -> Point:
    return tuple(math.fsum(column) for column in zip(*points, strict=True))


OPERATORS: tuple[Operator, ...] = (Karcher(),)
