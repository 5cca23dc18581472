"""Needs (what an operator must know of whole tensors) and facts (those needs, resolved)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

# One need resolved to numbers, by field name; inlined in the plan that relies on it.
Fact: TypeAlias = Mapping[str, float | int]


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


Need: TypeAlias = TrimNeed | MaskedL1Need
