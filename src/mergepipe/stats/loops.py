"""The inner loops of an index pass over one leaf: δ, counting its bit patterns, and summing products.

What they compute is fixed here to the bit, with numpy. Where numba is installed, `mergepipe.stats.compiled`
does the same in one pass over the data instead of a dozen (the extra `fast`); results do not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.compiling import compiled_module
from mergepipe.core.dtypes import DType, FloatArray, decode
from mergepipe.core.leaves import LEAF

LANES: Final = 1024
ROWS: Final = LEAF // LANES
TOP: Final = 1 << 15  # values of the upper 16 bits of a non-negative float: the sign bit is 0

Bits = NDArray[np.unsignedinteger[Any]]
Wide = NDArray[np.float64]

# Rows of `Loops.products`: δ², |δ|, θ₀δ, and δ with the sketch's signs.
PRODUCTS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Where the patterns of one delta's magnitudes are counted.

    `counts`, of `TOP` entries, is added to; `irregular`, one longer than a leaf, receives the patterns of a
    leaf that have bits below the upper 16, in order.
    """

    counts: NDArray[np.uint32]
    irregular: Bits


@dataclass(frozen=True, slots=True, eq=False)
class LeafLook:
    """What is known of a leaf of δ: itself, how many patterns are irregular, and of all of it three facts.

    `largest` is the largest finite |δ|; NaN and infinity are nonzero. They are 0 if no products were asked for.
    """

    delta: FloatArray
    irregular: int
    largest: float
    nonzero: int
    nonfinite: int


class Loops(Protocol):
    """One worker's loops. A look's arrays are overwritten by the next call."""

    def leaf(
        self,
        raw: NDArray[np.uint8],
        storage: DType,
        base: FloatArray,
        compute: np.dtype[Any],
        tally: Tally | None,
        products: Products | None,
    ) -> LeafLook:
        """δ of a leaf, an expert's stored bytes minus `base` (as long or longer), in `compute` precision."""

    def count(self, patterns: Bits, tally: Tally) -> int:
        """Count at most `LEAF` patterns of |δ| or δ; returns how many are irregular."""

    def close(self, counts: NDArray[np.uint32], totals: NDArray[np.int64]) -> tuple[int, int, int]:
        """Add `counts` to `totals`, both of `TOP` entries.

        Returns between which entries (`first`, `beyond`), the entry 0 left out, there are any, and the largest of them.
        """

    def find(self, patterns: Bits, pattern: int, rank: int) -> tuple[int, int]:
        """Where the `rank`-th (from 1) of the patterns that equal `pattern` is, or −1, and how many do up to there."""

    def products(self, delta: FloatArray, products: Products) -> tuple[float, int, int]:
        """Sum a leaf's products; returns its `largest`, `nonzero` and `nonfinite` as a `LeafLook` has them."""


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """Sums of a leaf's δ², |δ|, θ₀δ and δ with the sketch's signs go into `lanes`, of shape (4, `LANES`).

    The leaf lies in rows of `LANES` elements, and the rows are added to zeros one after another. Elements that
    are not finite count as zero. `base` is θ₀ (as long as δ or longer), `signs` of a leaf's full length.
    """

    base: Wide
    signs: Wide
    lanes: Wide


class NumpyLoops:
    """The loops by whole-leaf numpy calls."""

    def __init__(self) -> None:
        self._products = np.zeros((PRODUCTS, ROWS, LANES))
        # While patterns are counted the products are not needed.
        low, below, tops, flags = self._products.reshape(PRODUCTS, LEAF)
        self._low, self._below, self._tops, self._flags = low, below, tops.view(np.uint16), flags.view(np.bool_)
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
        count = raw.size // storage.itemsize
        delta = decode(raw, storage, self._delta.view(compute)[:count])
        np.subtract(delta, base[:count], out=delta)
        return self.look(delta, tally, products)

    def look(self, delta: FloatArray, tally: Tally | None, products: Products | None) -> LeafLook:
        """The rest of `leaf`, of a δ that is known."""
        irregular = 0 if tally is None else self.count(delta.view(f"u{delta.itemsize}"), tally)
        facts = (0.0, 0, 0) if products is None else self.products(delta, products)
        return LeafLook(delta, irregular, *facts)

    def count(self, patterns: Bits, tally: Tally) -> int:
        """See `Loops.count`."""
        size, width = patterns.size, 8 * patterns.itemsize
        bits = self._low.view(patterns.dtype)[:size]
        np.bitwise_and(patterns, (1 << (width - 1)) - 1, out=bits)
        tops = self._tops[:size]
        np.right_shift(bits, width - 16, out=tops, casting="unsafe")
        found = np.bincount(tops)
        np.add(tally.counts[: found.size], found, out=tally.counts[: found.size], casting="unsafe")
        low = np.bitwise_and(bits, (1 << (width - 16)) - 1, out=self._below.view(patterns.dtype)[:size])
        odd = np.flatnonzero(np.not_equal(low, 0, out=self._flags[:size]))
        tally.irregular[: odd.size] = bits[odd]
        return int(odd.size)

    def close(self, counts: NDArray[np.uint32], totals: NDArray[np.int64]) -> tuple[int, int, int]:
        """See `Loops.close`."""
        totals += counts
        met = counts[1:] > 0
        first = int(met.argmax())
        if not met[first]:
            return 1, 1, 0
        beyond = met.size - int(met[::-1].argmax())
        return first + 1, beyond + 1, int(counts[first + 1 : beyond + 1].max())

    def find(self, patterns: Bits, pattern: int, rank: int) -> tuple[int, int]:
        """See `Loops.find`."""
        equal = np.equal(patterns, patterns.dtype.type(pattern), out=self._flags[: patterns.size])
        places = np.flatnonzero(equal)
        return (int(places[rank - 1]), rank) if rank <= places.size else (-1, int(places.size))

    def products(self, delta: FloatArray, products: Products) -> tuple[float, int, int]:
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
        np.multiply(signed[:count], products.base[:count], out=dot[:count])
        np.multiply(padded, products.signs[: rows * LANES], out=padded)
        add_rows(self._products[:, :rows], products.lanes)
        return largest, nonzero, nonfinite


# Of one worker's loops.
LOOPS_BYTES: Final = (PRODUCTS + 1) * LEAF * 8


def add_rows(products: Wide, out: Wide) -> None:
    """Add the rows of `products` (…, rows, lanes) to zeros, one after another, into `out` (…, lanes)."""
    np.add.reduce(products, axis=-2, out=out, initial=0.0)


def quickest_loops() -> Loops:
    """Loops for one worker: compiled ones where numba is installed."""
    compiled = compiled_module("mergepipe.stats.compiled")
    return NumpyLoops() if compiled is None else compiled.CompiledLoops()
