"""Needs (what an operator must know of whole tensors) and facts (those needs, resolved)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# One need resolved to numbers, by field name; inlined in the plan that relies on it.
Fact: TypeAlias = Mapping[str, float | int]
# The same for a need of several terms: lists hold what is known of rows, of terms or of pairs of inputs.
GroupFact: TypeAlias = Mapping[str, float | int | Sequence[float]]


@dataclass(frozen=True, slots=True)
class TrimNeed:
    """Exact k-th magnitude of a delta, `k = max(1, int(density · n))`, with the cut.

    Fact: `threshold` (float) and `cut` (element position of the last kept tie): keep `|δ| > t`, or
    `|δ| = t` at positions up to the cut. density ≤ 0 keeps nothing, ≥ 1 everything; neither is a need.
    """

    density: float


@dataclass(frozen=True, slots=True)
class MaskedL1Need:
    """Sums for DARE's rescale under a keyed Bernoulli mask. Fact: `l1` = Σ|δ|, `masked_l1` = Σ|δ·m|."""

    key: int
    density: float


@dataclass(frozen=True, slots=True)
class RankNeed:
    """Exact magnitude of the `count`-th largest |δ|, earlier positions first, with its cut.

    Fact: `threshold` and `cut` as for `TrimNeed`; keeping by them keeps exactly `count` elements.
    `1 ≤ count < n`.
    """

    count: int


@dataclass(frozen=True, slots=True)
class RankedMaskL1Need:
    """Sums for DELLA's rescale: Σ|δ| and Σ|δ·m| with keep probabilities by rank within each row.

    Rows are of `row` elements (the last dimension; a vector is one row). Fact: `l1`, `masked_l1`.
    """

    key: int
    density: float
    epsilon: float
    row: int


@dataclass(frozen=True, slots=True)
class TrimmedL1Need:
    """Sums for the rescale of a trimmed delta. Fact: `l1` = Σ|δ|, and `kept_l1` over what `TrimNeed(density)` keeps."""

    density: float


@dataclass(frozen=True, slots=True)
class BandL1Need:
    """Sums for the rescale of breadcrumbs. Fact: `l1` = Σ|δ| and `kept_l1`, the sum over a band of ranks.

    The band is the `kept` largest |δ| after the `skipped` largest, earlier positions first as for
    `RankNeed`. `skipped ≥ 0`, `kept ≥ 1`, `skipped + kept ≤ n`.
    """

    skipped: int
    kept: int


Need: TypeAlias = TrimNeed | MaskedL1Need | RankNeed | RankedMaskL1Need | TrimmedL1Need | BandL1Need


@dataclass(frozen=True, slots=True)
class GramNeed:
    """Inner products over a whole tensor, in float64, of θ₀ and the deltas δ₁ … δ_K of the terms in order.

    Fact: `gram`: the (K+1)×(K+1) matrix ⟨·,·⟩ of (θ₀, δ₁, …, δ_K), row after row.
    """


@dataclass(frozen=True, slots=True)
class VectorGramNeed:
    """The same for each vector of a matrix: its rows (`axis` −1) or its columns (`axis` 0).

    The matrix is the tensor seen as (elements / row, row) for rows; `axis` 0 vectors run over the
    first dimension. Asked only of tensors of two dimensions or more. Fact: `gram`: the matrices of
    all vectors, one after another.
    """

    axis: int


@dataclass(frozen=True, slots=True)
class VarianceMaskNeed:
    """SCE's selection and weights: of the positions, the ⌊topk · nonzero⌋ of largest variance over the deltas.

    `topk > 0`; from 1 on, every position is selected. The variance is computed in the tiles' dtype and
    in recipe order: `mean = (Σδᵢ)/K`, then `Σ(δᵢ − mean)²/K`; `nonzero` counts where it is not 0.

    Fact: `threshold` and `cut` (as for `TrimNeed`, of the variance; of no meaning where `kept` is 0; 0 and
    n−1 where all is selected), `kept`, and `mean_squares`: per term, Σ δᵢ² over the selected positions / n.
    """

    topk: float


@dataclass(frozen=True, slots=True)
class OverlapNeed:
    """RAM's counts at |δ| > epsilon, in the tiles' dtype.

    Fact: `shared` and `unique`: per term, how many of its active positions other terms are active at, or not.
    """

    epsilon: float


@dataclass(frozen=True, slots=True)
class ImportanceNeed:
    """Arcee Fusion's threshold, `median + 1.5 (q₃ − q₁)` of |δ| · KL(p ‖ q), of the only term.

    p and q are the softmax of θ₁'s and of θ₀'s row, 1e-8 added to each entry; rows run along the last
    dimension, of `row` elements (a vector is one row). The product is of the tiles' dtype, KL rounded to
    it first. Quantile q of n sorted values is the one at ⌊q(n − 1)⌋.

    Fact: `threshold`, and `divergence`: the KL of each row.
    """

    row: int


# Needs that concern all terms of a tensor together (and the base).
GroupNeed: TypeAlias = GramNeed | VectorGramNeed | VarianceMaskNeed | OverlapNeed | ImportanceNeed
