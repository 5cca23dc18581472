"""Small random projections of a block's delta, whose inner products estimate those of the deltas.

Element `e` of a block falls into bucket `e mod 32` with a pseudo-random sign: the sign of its place in
the leaf (one pattern of a leaf for all) times a sign of (leaf number, bucket). Signs of two elements of
one bucket are independent, so that ⟨sketch(δ), sketch(δ')⟩ is an unbiased estimate of ⟨δ, δ'⟩ (Charikar,
Chen and Farach-Colton's count sketch, with fixed buckets). Sketches are linear: sketch(δ + δ') is the
sum of the sketches, to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF
from mergepipe.core.random import mask_key, uniform16

SKETCH: Final = 32
_LEAVES_AHEAD: Final = 64


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number known from sketches only, and the standard error of how it was got; never a fact."""

    value: float
    standard_error: float


class SketchSigns:
    """The signs, for one seed. Index files hold sketches of seed 0; other seeds are for tests of the estimate."""

    def __init__(self, seed: int = 0) -> None:
        self._leaf_key = mask_key(seed, "sketch leaf", 0, "")
        self.pattern: NDArray[np.float64] = _signs(mask_key(seed, "sketch", 0, ""), 0, LEAF)
        self._ahead = _signs(self._leaf_key, 0, _LEAVES_AHEAD * SKETCH).reshape(_LEAVES_AHEAD, SKETCH)

    def leaf(self, number: int) -> NDArray[np.float64]:
        """±1 for each bucket of the block's leaf `number`."""
        if number >= _LEAVES_AHEAD:
            return _signs(self._leaf_key, number * SKETCH, SKETCH)
        signs: NDArray[np.float64] = self._ahead[number]
        return signs


def estimate_dot(left: NDArray[Any], right: NDArray[Any], left_l2: float, right_l2: float) -> Estimate:
    """⟨δ, δ'⟩ from two sketches of the same block and the deltas' exact norms.

    The variance is at most (‖δ‖²‖δ'‖² + ⟨δ, δ'⟩²) / 32 if energy is spread evenly over the buckets, which
    the standard error assumes.
    """
    value = math.fsum((left.astype(np.float64) * right.astype(np.float64)).tolist())
    return Estimate(value, math.sqrt(((left_l2 * right_l2) ** 2 + value**2) / SKETCH))


def _signs(key: int, start: int, count: int) -> NDArray[np.float64]:
    signs: NDArray[np.float64] = np.where(uniform16(key, start, count) & 1, 1.0, -1.0)
    return signs
