"""Counter-based randomness: the value at a position depends on a key and the position only.

Philox 4x64 gives four 64-bit words a counter step, each cut into four 16-bit lanes, so element `e`
is lane `e % 16` of counter step `e // 16` (lanes in little-endian order).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_LANES = 16


def mask_key(seed: int, use: str, position: int, tensor: str) -> int:
    """The 128-bit key for one use of randomness: an expert (by its place in the recipe) in one output tensor."""
    text = f"{seed}\0{use}\0{position}\0{tensor}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def uniform16(key: int, start: int, count: int) -> NDArray[np.uint16]:
    """`count` uniform 16-bit integers for the elements `[start, start + count)`."""
    first = start // _LANES
    steps = -(-(start + count) // _LANES) - first
    words = np.random.Philox(counter=first, key=key).random_raw(4 * steps).astype("<u8", copy=False)
    offset = start - first * _LANES
    return words.view("<u2")[offset : offset + count]


def keep_mask(key: int, start: int, count: int, probability: float) -> NDArray[np.bool_]:
    """Bernoulli(`probability`) for each element: keep iff `u < round(probability · 65536)`."""
    lanes = round(probability * 65536)
    if lanes >= 65536:
        return np.ones(count, np.bool_)
    return uniform16(key, start, count) < np.uint16(lanes)
