"""What additive methods share: `θ = a₀θ₀ + Σ cᵢxᵢ`, summed expert by expert in recipe order.

Sums are kept negated and subtracted from the base. Rounding to nearest is symmetric, so this gives the
bits of adding them, but for one case: adding `0.0` first makes every zero of the negated sum `+0.0`, and
`x − 0.0` is `x` even for `x = −0.0`, where `x + 0.0` is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mergepipe.core.arrays import Array
from mergepipe.operators.contract import Delta, Norms, Reads, TensorSpec, Tile
from mergepipe.operators.parameters import number, tile_weights, to_tile, weights_of

# Called as write(i, delta, array) for a read term i: fills the array with xᵢ, the delta as sparsified.
Write = Callable[[int, Delta, Array], None]

# Below this mergekit takes the sum of the weights for zero and divides by one.
_VANISHING = 1e-8


@dataclass(frozen=True, slots=True)
class Mixture:
    """Coefficients of `a₀θ₀ + λ (Σ wᵢxᵢ) / D`; a term without effect has weight 0."""

    weights: tuple[float, ...]
    divisor: float = 1.0
    scale: float = 1.0
    base: float = 1.0

    @property
    def gains(self) -> tuple[float, ...]:
        """`|λ wᵢ / D|` of each term."""
        return tuple(abs(weight) / abs(self.divisor) * abs(self.scale) for weight in self.weights)


def resolve_mixture(spec: TensorSpec, densities: Sequence[float]) -> Mixture:
    """The mixture that `weight`, `normalize` and `lambda` describe; a term of density 0 counts in the divisor only."""
    given = weights_of(spec)
    total = math.fsum(given)
    divisor = total if spec.parameters["normalize"] and abs(total) >= _VANISHING else 1.0
    active = [weight if density > 0.0 else 0.0 for weight, density in zip(given, densities, strict=True)]
    return Mixture(
        weights=tile_weights(active, spec),
        divisor=to_tile(divisor, spec, "the sum of the weights"),
        scale=to_tile(number(spec.parameters, "lambda"), spec, "lambda"),
    )


def mix(tile: Tile, mixture: Mixture, write: Write, out: Array) -> None:
    """`a₀θ₀ + λ (Σ wᵢxᵢ) / D` into `out`, in mergekit's order: weigh, sum, divide, scale, add."""
    negated_sum(tile, mixture.weights, write, out)
    if mixture.divisor != 1.0:
        tile.xp.divide(out, mixture.divisor, out=out)
    if mixture.scale != 1.0:
        tile.xp.multiply(out, mixture.scale, out=out)
    subtract_from_base(tile, mixture.base, out)


def negated_sum(tile: Tile, weights: Sequence[float], write: Write, out: Array) -> None:
    """`−Σ wᵢxᵢ` over the read terms into `out`."""
    xp = tile.xp
    term = tile.scratch.floats("term", tile.count)
    into = out
    for term_number, (weight, delta) in enumerate(zip(weights, tile.deltas, strict=True)):
        if delta is None or weight == 0.0:
            continue
        write(term_number, delta, into)
        xp.multiply(into, -weight, out=into)
        if into is not out:
            xp.add(out, into, out=out)
        into = term
    if into is out:
        out[...] = 0.0


def subtract_from_base(tile: Tile, base_factor: float, negated: Array) -> None:
    """`a₀θ₀ − negated` in place; where `negated` is ±0, the bits of `a₀θ₀`."""
    xp = tile.xp
    xp.add(negated, 0.0, out=negated)
    base = tile.base
    if base_factor != 1.0:
        base = tile.scratch.floats("term", tile.count)
        xp.multiply(tile.base, base_factor, out=base)
    xp.subtract(base, negated, out=negated)


def omitted_sum(gains: Sequence[float], norms: Norms, read: Reads) -> Norms:
    """`Σ_{i omitted} gainᵢ ‖δᵢ,b‖` per block: the triangle inequality."""
    error: Norms = np.zeros(norms.shape[1])
    for gain, norm, seen in zip(gains, norms, read, strict=True):
        error += np.where(seen, 0.0, gain * norm)
    return error
