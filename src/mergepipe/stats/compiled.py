"""The inner loops of an index pass, compiled: every element is read once, and the interpreter is free meanwhile.

numba compiles without contraction of multiply and add and without reordering (`fastmath` is off), so that the
bits are those of `mergepipe.stats.loops.NumpyLoops`. Machine code is cached beside this file, or in the user's cache.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import DType, FloatArray, decode
from mergepipe.core.leaves import LEAF
from mergepipe.stats.loops import LANES, Bits, LeafLook, NumpyLoops, Products, Tally


def _masks(kind: Any) -> tuple[Any, Any, Any]:
    """How far the upper 16 bits are shifted, all bits but the sign, all bits below the upper 16."""
    width = 8 * np.dtype(kind).itemsize
    return kind(width - 16), kind((1 << (width - 1)) - 1), kind((1 << (width - 16)) - 1)


_MASKS: Final = {4: _masks(np.uint32), 8: _masks(np.uint64)}
# Patterns counted without a look at how many it were.
_AT_ONCE: Final = 2048
# Lanes summed together: four rows of sums of this many lanes stay in the first-level cache.
_TOGETHER: Final = 256


class CompiledLoops:
    """See `mergepipe.stats.loops.Loops`. What is not finite is left to numpy."""

    def __init__(self) -> None:
        self._numpy = NumpyLoops()
        self._delta = np.empty(LEAF)

    def leaf(
        self,
        raw: NDArray[np.uint8],
        storage: DType,
        base: FloatArray,
        compute: np.dtype[Any],
        tally: Tally | None,
        products: Products | None,
    ) -> LeafLook:
        """See `Loops.leaf`."""
        delta = self._delta.view(compute)[: raw.size // storage.itemsize]
        if storage.code == "BF16" and compute == base.dtype == np.float32:
            if tally is not None and products is not None:
                found = _leaf_of_bfloat16(raw.view(np.uint16), base, delta, *_rest(delta, tally, products))
                return self._look(delta, found, products)
            _minus_bfloat16(raw.view(np.uint16), base, delta, delta.view(np.uint32))
        else:
            np.subtract(decode(raw, storage, delta), base[: delta.size], out=delta)
        if tally is not None and products is not None:
            return self._look(delta, _leaf(delta, *_rest(delta, tally, products)), products)
        irregular = 0 if tally is None else self.count(delta.view(f"u{delta.itemsize}"), tally)
        facts = (0.0, 0, 0) if products is None else self.products(delta, products)
        return LeafLook(delta, irregular, *facts)

    def _look(self, delta: FloatArray, found: tuple[int, int, int], products: Products) -> LeafLook:
        irregular, largest, nonzero = found
        size = _float(largest, delta)
        facts = (size, nonzero, 0) if math.isfinite(size) else self._numpy.products(delta, products)
        return LeafLook(delta, irregular, *facts)

    def count(self, patterns: Bits, tally: Tally) -> int:
        """See `Loops.count`."""
        return int(_count(patterns, _MASKS[patterns.itemsize], tally.counts, tally.irregular))

    def close(self, counts: NDArray[np.uint32], totals: NDArray[np.int64]) -> tuple[int, int, int]:
        """See `Loops.close`."""
        found: tuple[int, int, int] = _close(counts, totals)
        return found

    def find(self, patterns: Bits, pattern: int, rank: int) -> tuple[int, int]:
        """See `Loops.find`."""
        found: tuple[int, int] = _find(patterns, patterns.dtype.type(pattern), rank)
        return found

    def products(self, delta: FloatArray, products: Products) -> tuple[float, int, int]:
        """See `Loops.products`."""
        largest, nonzero = _largest(delta.view(f"u{delta.itemsize}"), _MASKS[delta.itemsize])
        size = _float(largest, delta)
        if not math.isfinite(size):
            return self._numpy.products(delta, products)
        _products(delta, products.base, products.signs, products.lanes)
        return size, nonzero, 0


def _rest(delta: FloatArray, tally: Tally, products: Products) -> tuple[Any, ...]:
    bits, masks = delta.view(f"u{delta.itemsize}"), _MASKS[delta.itemsize]
    return bits, masks, tally.counts, tally.irregular, products.base, products.signs, products.lanes


def _float(pattern: int, like: FloatArray) -> float:
    return float(np.array([pattern], f"u{like.itemsize}").view(like.dtype)[0])


@numba.njit(nogil=True, cache=True)
def _minus_bfloat16(raw: Any, base: Any, delta: Any, bits: Any) -> None:
    for n in range(raw.size):
        bits[n] = np.uint32(raw[n]) << np.uint32(16)
    for n in range(raw.size):
        delta[n] -= base[n]


@numba.njit(nogil=True, cache=True)
def _leaf_of_bfloat16(
    raw: Any,
    base: Any,
    delta: Any,
    bits: Any,
    masks: Any,
    counts: Any,
    irregular: Any,
    wide: Any,
    signs: Any,
    lanes: Any,
) -> Any:
    _minus_bfloat16(raw, base, delta, bits)
    return _leaf(delta, bits, masks, counts, irregular, wide, signs, lanes)


@numba.njit(nogil=True, cache=True)
def _leaf(delta: Any, bits: Any, masks: Any, counts: Any, irregular: Any, wide: Any, signs: Any, lanes: Any) -> Any:
    found = _count(bits, masks, counts, irregular)
    _products(delta, wide, signs, lanes)
    largest, nonzero = _largest(bits, masks)
    return found, largest, nonzero


@numba.njit(nogil=True, cache=True)
def _count(bits: Any, masks: Any, counts: Any, irregular: Any) -> Any:
    shift, value, low = masks
    found = 0
    for n in range(bits.size):
        pattern = bits[n] & value
        counts[pattern >> shift] += np.uint32(1)
        # No branch: in float32 models nearly all patterns are irregular, in others few.
        irregular[found] = pattern
        found += (pattern & low) != 0
    return found


@numba.njit(nogil=True, cache=True)
def _close(counts: Any, totals: Any) -> Any:
    for n in range(counts.size):
        totals[n] += counts[n]
    first, beyond = 1, counts.size
    while first < beyond and counts[first] == 0:
        first += 1
    if first == beyond:
        return 1, 1, 0
    while counts[beyond - 1] == 0:
        beyond -= 1
    return first, beyond, counts[first:beyond].max()


@numba.njit(nogil=True, cache=True)
def _find(bits: Any, pattern: Any, rank: Any) -> Any:
    seen: Any = 0
    for start in range(0, bits.size, _AT_ONCE):
        part = bits[start : start + _AT_ONCE]
        met = np.uint32(0)
        for n in range(part.size):
            met += np.uint32(part[n] == pattern)
        if seen + met >= rank:
            for n in range(part.size):
                seen += part[n] == pattern
                if seen == rank:
                    return start + n, seen
        seen += met
    return -1, seen


@numba.njit(nogil=True, cache=True)
def _largest(bits: Any, masks: Any) -> Any:
    """The largest pattern without its sign, and how many are not ±0."""
    _, value, _ = masks
    largest, nonzero = bits[0] & value, 0
    for n in range(bits.size):
        pattern = bits[n] & value
        largest = max(largest, pattern)
        nonzero += pattern != 0
    return largest, nonzero


@numba.njit(nogil=True, cache=True)
def _products(delta: Any, base: Any, signs: Any, lanes: Any) -> None:
    lanes[:] = 0.0
    for first in range(0, LANES, _TOGETHER):
        square = lanes[0, first : first + _TOGETHER]
        absolute = lanes[1, first : first + _TOGETHER]
        dot = lanes[2, first : first + _TOGETHER]
        signed = lanes[3, first : first + _TOGETHER]
        # Zeros after the leaf's end would change nothing: no sum that began at 0.0 is a negative zero.
        for start in range(first, delta.size, LANES):
            values = delta[start : start + _TOGETHER]
            bases = base[start : start + _TOGETHER]
            mine = signs[start : start + _TOGETHER]
            # Loops of few arrays each, so that the compiler can tell that they do not overlap, and use wide registers.
            for n in range(values.size):
                value = np.float64(values[n])
                square[n] += value * value
                absolute[n] += abs(value)
            for n in range(values.size):
                dot[n] += np.float64(values[n]) * bases[n]
            for n in range(values.size):
                signed[n] += np.float64(values[n]) * mine[n]
