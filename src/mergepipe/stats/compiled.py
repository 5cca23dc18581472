"""The inner loops of an index pass, compiled: every element is read once, and the interpreter is free meanwhile.

numba compiles without contraction of multiply and add and without reordering (`fastmath` is off), so that the
bits are those of `mergepipe.stats.loops.NumpyLoops`. Machine code is cached beside this file, or in the user's cache.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.stats.loops import LANES, Bits, NumpyLoops, Wide

# Lanes summed together: four rows of sums of this many lanes stay in the first-level cache.
_TOGETHER = 256


class CompiledLoops:
    """See `mergepipe.stats.loops.Loops`."""

    def __init__(self) -> None:
        self._numpy: NumpyLoops | None = None

    def count(self, patterns: Bits, counts: NDArray[np.uint32], irregular: Bits) -> int:
        """See `Loops.count`."""
        width, unsigned = 8 * patterns.itemsize - 16, patterns.dtype.type
        return int(_count(patterns, unsigned(width), unsigned((1 << width) - 1), counts, irregular))

    def products(self, delta: FloatArray, base: Wide, signs: Wide, lanes: Wide) -> tuple[float, int, int]:
        """See `Loops.products`."""
        bits = delta.view(f"u{delta.itemsize}")
        sign = bits.dtype.type(1 << (8 * delta.itemsize - 1))
        largest, nonzero = _largest_pattern(bits, bits.dtype.type(sign - 1))
        size = np.array(largest, bits.dtype).view(delta.dtype)[()]
        if not np.isfinite(size):
            if self._numpy is None:
                self._numpy = NumpyLoops()
            return self._numpy.products(delta, base, signs, lanes)
        _products(delta, base, signs, lanes)
        return float(size), int(nonzero), 0


@numba.njit(nogil=True, cache=True)
def _count(patterns: Any, shift: Any, mask: Any, counts: Any, irregular: Any) -> Any:
    found = 0
    for n in range(patterns.size):
        pattern = patterns[n]
        counts[pattern >> shift] += np.uint32(1)
        irregular[found] = pattern
        found += (pattern & mask) != 0
    return found


@numba.njit(nogil=True, cache=True)
def _largest_pattern(bits: Any, mask: Any) -> Any:
    largest = bits[0] & mask
    nonzero = 0
    for n in range(bits.size):
        pattern = bits[n] & mask
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
