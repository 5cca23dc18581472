"""The two inner loops of an index pass: counting bit patterns, and summing products over a leaf.

What they compute is fixed here to the bit, with numpy. Where numba is installed, `mergepipe.stats.compiled`
does the same in one pass over the data instead of a dozen (the extra `fast`); results do not depend on it.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF

LANES: Final = 1024
ROWS: Final = LEAF // LANES
TOP: Final = 1 << 15  # values of the upper 16 bits of a non-negative float: the sign bit is 0

Bits = NDArray[np.unsignedinteger[Any]]
Wide = NDArray[np.float64]

# Rows of `Loops.products`: δ², |δ|, θ₀δ, and δ with the sketch's signs.
PRODUCTS: Final = 4


class Loops(Protocol):
    """One worker's loops; a call may use buffers of the last."""

    def count(self, patterns: Bits, counts: NDArray[np.uint32], irregular: Bits) -> int:
        """Add the upper 16 bits of at most `LEAF` patterns of |δ| to `counts`, of `TOP` entries.

        Patterns that have lower bits are copied, in order, to the front of `irregular` (one element longer
        than `patterns`); returns how many.
        """

    def products(self, delta: FloatArray, base: Wide, signs: Wide, lanes: Wide) -> tuple[float, int, int]:
        """Sum a leaf's four products into `lanes`, of shape (4, `LANES`); returns max|δ|, nonzeros and non-finites.

        The leaf lies in rows of `LANES` elements, zeros after its end (its own last row's), and the rows are
        added one after another. `delta`, `base` and `signs` are the leaf's, `signs` at full length. Elements
        that are not finite count as zero everywhere but in the counts; NaN and infinity are nonzero.
        """


class NumpyLoops:
    """The loops by whole-leaf numpy calls."""

    def __init__(self) -> None:
        self._products = np.zeros((PRODUCTS, ROWS, LANES))
        # While patterns are counted the products are not needed.
        low, tops, flags, _ = self._products.reshape(PRODUCTS, LEAF)
        self._low, self._tops, self._flags = low, tops.view(np.uint16), flags.view(np.bool_)

    def count(self, patterns: Bits, counts: NDArray[np.uint32], irregular: Bits) -> int:
        """See `Loops.count`."""
        size, shift = patterns.size, 8 * patterns.itemsize - 16
        tops = self._tops[:size]
        np.right_shift(patterns, shift, out=tops, casting="unsafe")
        found = np.bincount(tops)
        np.add(counts[: found.size], found, out=counts[: found.size], casting="unsafe")
        low = np.bitwise_and(patterns, (1 << shift) - 1, out=self._low.view(patterns.dtype)[:size])
        odd = np.flatnonzero(np.not_equal(low, 0, out=self._flags[:size]))
        irregular[: odd.size] = patterns[odd]
        return int(odd.size)

    def products(self, delta: FloatArray, base: Wide, signs: Wide, lanes: Wide) -> tuple[float, int, int]:
        """See `Loops.products`."""
        count = delta.size
        rows = -(-count // LANES)
        nonzero = int(np.count_nonzero(delta))
        square, absolute, dot, signed = (self._products[row].reshape(-1) for row in range(PRODUCTS))
        signed[count : rows * LANES] = 0.0
        np.copyto(signed[:count], delta)
        padded = signed[: rows * LANES]
        sizes = np.abs(padded, out=absolute[: rows * LANES])
        largest, nonfinite = float(sizes.max()), 0
        if not math.isfinite(largest):
            odd = ~np.isfinite(padded)
            nonfinite = int(np.count_nonzero(odd))
            padded[odd] = 0.0
            sizes[odd] = 0.0
            largest = float(sizes.max())
        np.multiply(padded, padded, out=square[: rows * LANES])
        dot[count : rows * LANES] = 0.0
        np.multiply(signed[:count], base, out=dot[:count])
        np.multiply(padded, signs[: rows * LANES], out=padded)
        add_rows(self._products[:, :rows], lanes)
        return largest, nonzero, nonfinite


LOOPS_BYTES: Final = PRODUCTS * LEAF * 8


def add_rows(products: Wide, out: Wide) -> None:
    """Add the rows of `products` (…, rows, lanes) to zeros, one after another, into `out` (…, lanes)."""
    np.add.reduce(products, axis=-2, out=out, initial=0.0)


def quickest_loops() -> Loops:
    """Loops for one worker: compiled ones where numba is installed."""
    kind = _compiled()
    return NumpyLoops() if kind is None else kind()


@cache
def _compiled() -> type[Loops] | None:
    try:
        module = import_module("mergepipe.stats.compiled")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    kind: type[Loops] = module.CompiledLoops
    return kind
