"""sce, ram, ramplus_tl, arcee_fusion, nearswap and passthrough as plain whole-tensor numpy, from the formulas.

Arithmetic is in the dtype of the base, experts in recipe order; where an update is zero, the base's bits stay.
Facts of whole tensors are computed from `whole`, the deltas as they are; `deltas` holds zeros where unread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def sce(base: Floats, deltas: Sequence[Floats], whole: Sequence[Floats], topk: float, switch: bool) -> Floats:
    """Select by variance, weigh by energy, erase what lost the vote. `switch`: equal weights for faint deltas."""
    if topk <= 0:
        return base
    size, kind = base.size, base.dtype.type
    chosen = _largest(_variance(whole), topk)
    if not chosen:
        return base
    squares = [math.fsum(float(x) ** 2 for x in delta[chosen]) / size for delta in whole]
    total = math.fsum(squares)
    faint = total < 1e-6 if switch else total == 0
    weights = [kind(1 / len(whole) if faint else square / total) for square in squares]
    # The last chosen position says where the variance of what was read is cut, too.
    spread, last = _variance(whole), chosen[-1]
    seen = _variance(deltas)
    mask = (seen > spread[last]) | ((seen == spread[last]) & (np.arange(size) <= last)) | (topk >= 1)
    votes = [np.where(mask, delta, kind(0)) for delta in deltas]
    sign = np.where(_sum(votes) >= 0, kind(1), kind(-1))
    update, divisor = np.zeros_like(base), np.zeros_like(base)
    for weight, vote in zip(weights, votes, strict=True):
        agrees = np.sign(vote) == sign
        update = update + np.where(agrees, vote * weight, kind(0))
        divisor = divisor + np.where(agrees, weight, kind(0))
    return _add(base, update / np.maximum(divisor, kind(1e-6)))


def ram(base: Floats, deltas: Sequence[Floats], epsilon: float) -> Floats:
    """The mean over the experts that changed an entry."""
    active = np.array([np.abs(delta) > base.dtype.type(epsilon) for delta in deltas])
    count = np.maximum(active.sum(axis=0), 1).astype(base.dtype)
    update = _sum([np.where(mask, delta, 0) for mask, delta in zip(active, deltas, strict=True)]) / count
    return _add(base, update.astype(base.dtype))


def ramplus(
    base: Floats, deltas: Sequence[Floats], whole: Sequence[Floats], r: float, alpha: float, epsilon: float
) -> Floats:
    """As `ram`, entries of one expert alone times `1 + r min(shared/own, alpha)`."""
    kind = base.dtype.type
    changed = np.array([np.abs(delta) > kind(epsilon) for delta in whole])
    together = changed.sum(axis=0)
    factors = []
    for mask in changed:
        shared, own = int((mask & (together > 1)).sum()), int((mask & (together == 1)).sum())
        factors.append(kind(1 + r * min(shared / own, alpha)) if own else kind(1))
    active = np.array([np.abs(delta) > kind(epsilon) for delta in deltas])
    count = active.sum(axis=0)
    update = _sum([np.where(mask, delta, kind(0)) for mask, delta in zip(active, deltas, strict=True)])
    update = update / np.maximum(count, 1).astype(base.dtype)
    for factor, mask, delta in zip(factors, active, deltas, strict=True):
        update = np.where(mask & (count == 1), delta * factor, update)
    return _add(base, update)


def arcee_fusion(base: Floats, delta: Floats, whole: Floats, row: int) -> Floats:
    """Take over where `|δ| KL` reaches `median + 1.5 (q₃ − q₁)` of the tensor."""
    kind, size = base.dtype.type, base.size
    after, before = _softmax(base.astype(np.float64) + whole, row), _softmax(base.astype(np.float64), row)
    divergence = [
        kind(math.fsum(p * math.log(p / q) for p, q in zip(one, other, strict=True)))
        for one, other in zip(after, before, strict=True)
    ]
    spread = np.repeat(np.array(divergence, base.dtype), row)
    ordered = sorted(float(x) for x in np.abs(whole) * spread)
    first, middle, third = (ordered[int(share * (size - 1))] for share in (0.25, 0.5, 0.75))
    taken = np.abs(delta) * spread >= kind(middle + 1.5 * (third - first))
    return _add(base, np.where(taken, delta, kind(0)))


def nearswap(base: Floats, delta: Floats, t: float) -> Floats:
    """Each element moves towards the other model by `t` at most."""
    most = base.dtype.type(t)
    return _add(base, np.where(np.abs(delta) > most, np.sign(delta) * most, delta))


def passthrough(base: Floats, delta: Floats, scale: float) -> Floats:
    """`s (θ₀ + δ)`."""
    return _add(base, delta) * base.dtype.type(scale)


def _variance(deltas: Sequence[Floats]) -> Floats:
    kind = deltas[0].dtype.type
    mean = _sum(deltas) / kind(len(deltas))
    spread: Floats = _sum([(delta - mean) * (delta - mean) for delta in deltas]) / kind(len(deltas))
    return spread


def _largest(spread: Floats, topk: float) -> list[int]:
    """The selected positions, the largest variance first, the earlier of two equal ones first."""
    if topk >= 1:
        return list(range(spread.size))
    order = sorted(range(spread.size), key=lambda n: (-float(spread[n]), n))
    return order[: int(topk * np.count_nonzero(spread))]


def _softmax(values: Floats, row: int) -> NDArray[np.float64]:
    rows = values.reshape(-1, row)
    raised = np.exp(rows - rows.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True) + 1e-8
    return shares


def _sum(rows: Sequence[Floats]) -> Floats:
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def _add(base: Floats, update: Floats) -> Floats:
    return np.where(update == 0, base, base + update)
