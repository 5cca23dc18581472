"""Sign election, shared by the methods of TIES's kind: weighted deltas vote, those of the elected sign are summed.

With `xᵢ` the sparsified deltas, element by element: `vᵢ = wᵢxᵢ`, `s = +1` where `Σ vᵢ ≥ 0` else `−1`, kept are
the terms with `sign(vᵢ) = s`, the update is `λ Σ_kept vᵢ`, under `normalize` divided by `Σ_kept wᵢ` (0 → 1). A
zero is never kept, so an unread or zero delta neither votes nor counts in the divisor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mergepipe.core.arrays import Array, Namespace
from mergepipe.operators.additive import Write, subtract_from_base
from mergepipe.operators.contract import Norms, Reads, TensorSpec, Tile
from mergepipe.operators.parameters import number, tile_weights, to_tile, weights_of

MIXED_SIGNS = (
    "weights of both signs under normalize: the sum of the kept weights can come near zero, so no omission has a bound"
)


@dataclass(frozen=True, slots=True)
class Election:
    """Coefficients of a sign election; a term without effect has weight 0."""

    weights: tuple[float, ...]
    normalize: bool
    scale: float


def resolve_election(spec: TensorSpec, densities: Sequence[float]) -> Election:
    """The election that `weight`, `normalize` and `lambda` describe; a term of density 0 has no part in it."""
    active = [weight if density > 0.0 else 0.0 for weight, density in zip(weights_of(spec), densities, strict=True)]
    return Election(
        weights=tile_weights(active, spec),
        normalize=bool(spec.parameters["normalize"]),
        scale=to_tile(number(spec.parameters, "lambda"), spec, "lambda"),
    )


def scratch_arrays(terms: int) -> int:
    """Votes of all terms, mask (floats and two of flags), sum and divisor."""
    return terms + 4


def elect(tile: Tile, election: Election, write: Write, out: Array) -> None:
    """`θ₀` plus the elected update into `out`. `write` may use the arrays called "mask" and the flags "inner"."""
    xp, scratch, count = tile.xp, tile.scratch, tile.count
    votes: list[tuple[float, Array]] = []
    for term, (weight, delta) in enumerate(zip(election.weights, tile.deltas, strict=True)):
        if delta is None or weight == 0.0:
            continue
        vote = scratch.floats(f"vote {term}", count)
        write(term, delta, vote)
        xp.multiply(vote, weight, out=vote)
        if votes:
            xp.add(out, vote, out=out)
        else:
            out[...] = vote
        votes.append((weight, vote))
    if not votes:
        out[...] = tile.base
        return

    sign = elected_sign(out, xp)
    total = scratch.floats("sum", count)
    divisor = scratch.floats("divisor", count)
    mask, kept = scratch.floats("mask", count), scratch.flags("mask", count)
    for place, (weight, vote) in enumerate(votes):
        flip_signs(vote, sign, xp)
        xp.greater(vote, 0.0, out=kept)
        mask[...] = kept
        if place == 0:
            xp.multiply(vote, mask, out=total)
        else:
            xp.multiply(vote, mask, out=vote)
            xp.add(total, vote, out=total)
        if election.normalize and place == 0:
            xp.multiply(mask, weight, out=divisor)
        elif election.normalize:
            xp.multiply(mask, weight, out=mask)
            xp.add(divisor, mask, out=divisor)

    if election.normalize:
        # Not `equal`, which in torch compares whole arrays.
        xp.not_equal(divisor, 0.0, out=kept)
        xp.logical_not(kept, out=kept)
        mask[...] = kept
        xp.add(divisor, mask, out=divisor)
        xp.divide(total, divisor, out=total)
    xp.bitwise_xor(total.view(sign.dtype), sign, out=sign)
    xp.multiply(out, -election.scale, out=out)
    subtract_from_base(tile, 1.0, out)


def elected_sign(ballot: Array, xp: Namespace) -> Array:
    """The sign bits of a sum of votes, in the sum's own memory, as integers.

    The bit says whether the sum is negative (it is −0.0 only where nobody votes). Flipping it in every vote
    turns "has the elected sign" into "is positive", and the kept sum into one of magnitudes.
    """
    whole = xp.int64 if ballot.dtype.itemsize == 8 else xp.int32
    sign = ballot.view(whole)
    xp.bitwise_and(sign, int(xp.iinfo(whole).min), out=sign)
    return sign


def flip_signs(values: Array, sign: Array, xp: Namespace) -> None:
    """Negate `values` in place where the sign bit of `sign` is set."""
    bits = values.view(sign.dtype)
    xp.bitwise_xor(bits, sign, out=bits)


def election_gains(election: Election, factors: Sequence[float]) -> tuple[float, ...]:
    """What selection weighs deltas by: `|λwᵢ| gᵢ`, under `normalize` over `Σ|wⱼ|`, as if all terms were kept."""
    sizes = [abs(weight) for weight in election.weights]
    divisor = math.fsum(sizes) if election.normalize else 1.0
    if divisor == 0.0:
        return (0.0,) * len(sizes)
    return tuple(size / divisor * abs(election.scale) * factor for size, factor in zip(sizes, factors, strict=True))


def election_bound(election: Election, factors: Sequence[float], norms: Norms, read: Reads) -> Norms | str:
    """Per block, a bound of the error of reading only `read`; `‖xᵢ‖ ≤ factors[i]·‖δᵢ‖`.

    Neither bound asks why a sign was elected, so both hold for elections decided by rounding.

    Without `normalize`: if both runs elect the same sign, they differ by omitted terms of that sign; if
    not, by the kept terms of two opposite signs; so by at most `Σ|vᵢ|` over all terms.

    With `normalize` and weights of one sign, both results are means of entries, of one sign each, so
    that an error is at most `max_all|x| + max_read|x|`. If the signs agree, it is at most the larger of the
    two means; if not, at most `|xᵢ| + |xⱼ|` with i ≠ j: never above `Σ|xᵢ|` nor `√2 (Σxᵢ²)^½`. The least
    of the three is taken.
    """
    weights = np.asarray(election.weights)
    active = weights != 0.0
    sizes = np.where(active, np.asarray(factors), 0.0)[:, None] * norms
    touched = ((sizes > 0.0) & ~read).any(axis=0)
    if not touched.any():
        return np.zeros(norms.shape[1])
    scale = abs(election.scale)
    if not election.normalize:
        bound = (np.abs(weights)[:, None] * sizes).sum(axis=0)
    elif (weights > 0.0).any() and (weights < 0.0).any():
        return MIXED_SIGNS
    else:
        everything = np.sqrt((sizes**2).sum(axis=0))
        seen = np.sqrt((np.where(read, sizes, 0.0) ** 2).sum(axis=0))
        bound = np.minimum(np.minimum(everything + seen, math.sqrt(2.0) * everything), sizes.sum(axis=0))
    return np.where(touched, scale * bound, 0.0)
