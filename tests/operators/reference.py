"""The methods as plain whole-tensor numpy, from the formulas; independent of the package.

Arithmetic is in the dtype of the base: float32 to compare bits, float64 as "exact". Deltas are merged in
recipe order, an unread one is passed as zeros. Where an update is zero, the base's bits stay.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def linear(base: Floats, deltas: Sequence[Floats], weights: Sequence[float], own: float, normalize: bool) -> Floats:
    """`Σ wθ / Σ w` over the base (weight `own`) and the experts."""
    total = math.fsum([own, *weights])
    kind = base.dtype.type
    factors = [kind(w / total) for w in weights] if normalize else [kind(w) for w in weights]
    scaled = base if normalize else base * kind(total)
    return _add(scaled, _weighted_sum(deltas, factors))


def task_arithmetic(
    base: Floats, deltas: Sequence[Floats], weights: Sequence[float], normalize: bool, lambda_: float
) -> Floats:
    """`θ₀ + λ Σ wδ / Σ w`."""
    kind = base.dtype.type
    update = _weighted_sum(deltas, [kind(w) for w in weights])
    total = math.fsum(weights)
    if normalize and abs(total) >= 1e-8:
        update = update / kind(total)
    return _add(base, update * kind(lambda_))


def elected(
    base: Floats, deltas: Sequence[Floats], weights: Sequence[float], normalize: bool, lambda_: float
) -> Floats:
    """Sign election over sparsified deltas."""
    kind = base.dtype.type
    votes = [kind(w) * delta for w, delta in zip(weights, deltas, strict=True)]
    ballot = np.zeros_like(base)
    for vote in votes:
        ballot = ballot + vote
    sign = np.where(ballot >= 0, kind(1), kind(-1))
    update, divisor = np.zeros_like(base), np.zeros_like(base)
    for w, vote in zip(weights, votes, strict=True):
        agrees = np.sign(vote) == sign
        update = update + np.where(agrees, vote, kind(0))
        divisor = divisor + np.where(agrees, kind(w), kind(0))
    if normalize:
        update = update / np.where(divisor == 0, kind(1), divisor)
    return _add(base, update * kind(lambda_))


def trimmed(delta: Floats, density: float) -> Floats:
    """The `max(1, int(density · n))` largest magnitudes, the earlier of two equal ones first."""
    if density >= 1:
        return delta
    kept = np.zeros_like(delta)
    if density > 0:
        order = sorted(range(delta.size), key=lambda n: (-abs(float(delta[n])), n))
        chosen = order[: max(1, int(density * delta.size))]
        kept[chosen] = delta[chosen]
    return kept


def dropped(delta: Floats, density: float, factor: float, seed: int, position: int, tensor: str) -> Floats:
    """Entries kept at random with probability `density`, times `factor`."""
    if density >= 1:
        return delta
    if density <= 0:
        return np.zeros_like(delta)
    return np.where(dare_mask(delta.size, density, seed, position, tensor), delta * delta.dtype.type(factor), 0)


def dare_mask(elements: int, density: float, seed: int, position: int, tensor: str) -> NDArray[np.bool_]:
    """Keep iff `u < round(p · 65536)`."""
    mask: NDArray[np.bool_] = uniform(elements, seed, "dare", position, tensor) < round(density * 65536)
    return mask


def uniform(elements: int, seed: int, use: str, position: int, tensor: str) -> NDArray[np.uint64]:
    """Philox keyed by seed, use, expert and tensor, 16 bits an element."""
    digest = hashlib.sha256(f"{seed}\0{use}\0{position}\0{tensor}".encode()).digest()
    words = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(elements // 4 + 1)
    lanes = np.stack([words >> np.uint64(16 * lane) & np.uint64(0xFFFF) for lane in range(4)], axis=1).ravel()
    return lanes[:elements]


def l1_factor(delta: Floats, mask: NDArray[np.bool_]) -> float:
    """`‖δ‖₁ / ‖δ∘m‖₁`, 1 where nothing is left or float32 cannot hold it."""
    left = math.fsum(abs(float(x)) for x in delta[mask])
    factor = math.fsum(abs(float(x)) for x in delta) / left if left else 1.0
    return factor if factor < 2.0**128 else 1.0


def _weighted_sum(deltas: Sequence[Floats], factors: Sequence[np.floating[Any]]) -> Floats:
    total: Floats = factors[0] * deltas[0] if deltas else np.zeros(())
    for factor, delta in zip(factors[1:], deltas[1:], strict=True):
        total = total + factor * delta
    return total


def _add(base: Floats, update: Floats) -> Floats:
    return np.where(update == 0, base, base + update)
