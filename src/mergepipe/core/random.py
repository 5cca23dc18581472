"""Counter-based randomness: the value at a position depends on a key and the position only.

Philox 4x64 gives four 64-bit words a counter step, each cut into four 16-bit lanes, so element `e`
is lane `e % 16` of counter step `e // 16` (lanes in little-endian order).
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray

_LANES = 16
_GREATEST = (1 << 64) - 1


def mask_key(seed: int, use: str, position: int, tensor: str) -> int:
    """The 128-bit key for one use of randomness: an expert (by its place in the recipe) in one output tensor."""
    text = f"{seed}\0{use}\0{position}\0{tensor}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:16], "little")


def uniform16(key: int, start: int, count: int) -> NDArray[np.uint16]:
    """`count` uniform 16-bit integers for the elements `[start, start + count)`."""
    first = start // _LANES
    steps = -(-(start + count) // _LANES) - first
    # All 64 bits of each word, so these are the words of `random_raw`, which takes and gives back the interpreter's
    # lock for every one of them.
    generator = np.random.Generator(np.random.Philox(counter=first, key=key))
    words = generator.integers(0, _GREATEST, 4 * steps, np.uint64, endpoint=True).astype("<u8", copy=False)
    offset = start - first * _LANES
    return words.view("<u2")[offset : offset + count]


def keep_mask(key: int, start: int, count: int, probability: float) -> NDArray[np.bool_]:
    """Bernoulli(`probability`) for each element: keep iff `u < round(probability · 65536)`."""
    lanes = round(probability * 65536)
    if lanes >= 65536:
        return np.ones(count, np.bool_)
    return uniform16(key, start, count) < np.uint16(lanes)


# How many elements are ranked at a time, where rows are shorter.
_RANKED = 65_536


def ranked_keep_mask(
    key: int, start: int, magnitudes: FloatArray, row: int, density: float, epsilon: float
) -> NDArray[np.bool_]:
    """A mask of whole rows whose larger entries are kept with higher probability (DELLA).

    `magnitudes` holds |δ| of the elements from `start` on, `start` and its length multiples of `row`. The
    entry of rank r of a row's R (from 0, ascending, the earlier of two equal ones first) is kept iff
    `u < round((p − ε + 2ε·r/(R − 1))·65536)`, where R = 1 iff `u < round(p·65536)`. NaN ranks highest.
    """
    kept = np.empty(magnitudes.size, np.bool_)
    if not magnitudes.size:
        return kept
    lanes = lanes_by_rank(row, density, epsilon)
    step = max(_RANKED // row, 1) * row
    for first in range(0, magnitudes.size, step):
        order = _ranking(magnitudes[first : first + step], row)
        uniform = uniform16(key, start + first, order.size)
        part = kept[first : first + step]
        part[order.reshape(-1)] = (uniform[order] < lanes).reshape(-1)
    return kept


def ranking_bytes(count: int, row: int) -> int:
    """Bytes `ranked_keep_mask` takes for `count` elements in rows of `row`, its result included."""
    at_once = min(count, max(_RANKED // row, 1) * row)
    return count + 24 * at_once + 28 * row


def lanes_by_rank(row: int, density: float, epsilon: float) -> NDArray[np.uint32]:
    """For each rank of a row, below what its 16 random bits must be; ascending."""
    if row == 1:
        return np.array([round(density * 65536)], np.uint32)
    probability = (density - epsilon) + 2 * epsilon * (np.arange(row) / (row - 1))
    return np.rint(probability * 65536).astype(np.uint32)


def _ranking(magnitudes: FloatArray, row: int) -> NDArray[np.int64]:
    """Positions in `magnitudes`, row by row in ascending order; of shape (rows, row)."""
    rows = magnitudes.reshape(-1, row)
    starts = np.arange(0, magnitudes.size, row)[:, None]
    if magnitudes.itemsize != 4:
        return np.argsort(rows, axis=1, kind="stable") + starts
    # Bits of non-negative floats are ordered as the floats are. Sorting them with the position below them is
    # stable whatever the algorithm, and numpy sorts integers several times faster than it sorts stably.
    keys = rows.view(np.uint32).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.arange(row, dtype=np.uint64)
    keys.sort(axis=1)
    keys &= np.uint64(0xFFFF_FFFF)
    order = keys.view(np.int64)
    order += starts
    return order
