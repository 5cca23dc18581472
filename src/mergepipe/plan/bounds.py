"""How far a plan's result can be from the full-read merge, from exact facts.

Rounding (design, semantics). One run computes `a₀θ₀ + U` in floating point of unit roundoff u. For
additive methods the update is a sum of K products: K−1 additions, up to two multiplications a term,
one multiplication by λ, one division, so its error is at most (K+3)u times the sum of the terms'
magnitudes, to first order; adding the base adds u·|result| and a multiplication by a₀ another u. We
take (K+6)u·(|a₀|‖θ₀‖ + ‖U‖), which also covers the second-order terms for K < 2^20. For
sign-elected methods numerator and divisor each carry K such errors: (2K+8)u. Rounding to the output
dtype of unit roundoff v adds at most v·|x| + s/2 an element, s the smallest subnormal: half a unit
in the last place a run. A run that copies a block rounds nothing there.

Below the smallest normal number (2^-126 in float32) a product's error is at most 2^-150, whatever its
size, and λ/D or a rescale factor may enlarge it by its gain over its weight. We take 2^-126 an operation,
times the largest gain if that is above 1: enough for weights down to 2^-24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mergepipe.core.dtypes import dtype
from mergepipe.operators.contract import AccessClass, Norms, Operator, Reads
from mergepipe.plan.logical import TensorMerge

# Facts are float64 sums of squares over at most 2^20 leaves of 2^16: their relative error is below
# 2^-30 of this margin; multiplying by it rounds every figure upward.
_UPWARD = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """‖θ_plan − θ_full‖₂ over the whole model, with its mark.

    `kind` is "certified", "estimated" or "none". `l2` is in exact arithmetic on the stored inputs,
    `rounding_l2` what arithmetic and output rounding of the two runs can add: stored tensors differ
    by at most their sum. The relative figures are against the full update and the base's weights;
    null where no lower bound of the update is proved. `reason` says why something is missing.
    """

    kind: str
    l2: float | None
    rounding_l2: float | None
    relative_to_update: float | None
    relative_to_weights: float | None
    reason: str | None = None


EXACT = Bound("certified", 0.0, 0.0, 0.0, 0.0)


def no_bound(reason: str) -> Bound:
    """A plan without a bound, and why."""
    return Bound("none", None, None, None, None, reason)


@dataclass(frozen=True, slots=True)
class TensorEvidence:
    """What is known of one tensor under a plan: coefficients, norms of shape (terms, blocks), what is read.

    `base_norms` is of shape (blocks,); `sizes` are the blocks' elements.
    """

    tensor: TensorMerge
    coefficients: Any
    norms: Norms
    read: Reads
    base_norms: Norms
    sizes: np.ndarray[Any, np.dtype[np.int64]]


def bound_of(operator: Operator, evidence: Sequence[TensorEvidence]) -> Bound:
    """The plan's bound, summed over tensors; kind "none" as soon as one tensor with an omission has none."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _bound(operator, evidence)


def _bound(operator: Operator, evidence: Sequence[TensorEvidence]) -> Bound:
    error = rounding = weights = update_floor = 0.0
    for part in evidence:
        weights += float(np.sum(part.base_norms**2))
        update_floor += _update_floor(operator, part)
        omitted = ((part.norms > 0) & ~part.read).any(axis=0)
        if not omitted.any():
            continue
        exact = operator.bound(part.coefficients, part.norms, part.read, part.sizes)
        update = operator.bound(part.coefficients, part.norms, np.zeros_like(part.read), part.sizes)
        if isinstance(exact, str):
            return no_bound(f"{part.tensor.name}: {exact}")
        if isinstance(update, str):
            return no_bound(f"{part.tensor.name}: {update}")
        error += float(np.sum(exact**2))
        rounding += float(np.sum(_rounding(operator, part, update)[omitted] ** 2))
    if not math.isfinite(error + rounding + weights):
        return no_bound("the squares of the norms are beyond what float64 holds")
    l2 = math.sqrt(error) * _UPWARD
    floor = math.sqrt(update_floor) / _UPWARD
    return Bound(
        kind="certified",
        l2=l2,
        rounding_l2=math.sqrt(rounding) * _UPWARD,
        relative_to_update=l2 / floor if floor > 0 else None,
        relative_to_weights=l2 / math.sqrt(weights) * _UPWARD if weights > 0 else None,
        reason=None if floor > 0 else "relative_to_update: no lower bound of the full update is proved",
    )


def _rounding(operator: Operator, part: TensorEvidence, update: Norms) -> Norms:
    """Per block: what arithmetic and output rounding of both runs add to the difference of stored values."""
    tensor = part.tensor
    stored, out = dtype(tensor.dtype), dtype(tensor.out_dtype)
    wide = tensor.wide
    unit, smallest = (2.0**-53, 2.0**-1022) if wide else (2.0**-24, 2.0**-126)
    terms = part.norms.shape[0]
    operations = 2 * terms + 8 if operator.access is AccessClass.SIGN_ELECTED else terms + 6
    size = operator.base_gain(part.coefficients) * part.base_norms + update
    enlarged = max(1.0, *operator.gains(part.coefficients))
    arithmetic = operations * (unit * size + smallest * enlarged * np.sqrt(part.sizes))
    final = np.zeros_like(size)
    if out.precision <= (53 if wide else 24):
        half_ulp = 2.0**-out.precision
        final = half_ulp * (size + arithmetic) + 0.5 * out.smallest * np.sqrt(part.sizes)
    copied = ~part.read.any(axis=0) & operator.copies_unread(part.coefficients) & (stored.code == out.code)
    runs = np.where(copied, 1.0, 2.0)
    rounding: Norms = runs * (arithmetic + final)
    return rounding


def _update_floor(operator: Operator, part: TensorEvidence) -> float:
    """A lower bound of ‖full update‖² in this tensor: the largest term less all others, block by block."""
    if operator.access is not AccessClass.ADDITIVE or not operator.exact_gains(part.coefficients):
        return 0.0
    terms = np.asarray(operator.gains(part.coefficients))[:, None] * part.norms
    if not terms.size:
        return 0.0
    least = np.maximum(2.0 * terms.max(axis=0) - terms.sum(axis=0), 0.0)
    return float(np.sum(least**2))
