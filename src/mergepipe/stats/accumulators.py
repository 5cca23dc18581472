"""Exact sums over the leaves of a block, in float64, by a fixed tree of elementwise additions.

A leaf (65,536 elements, counted from the block's start) is laid out in rows of 1,024 lanes, zeros after
its end. The rows are added one after another, then the upper half of the lanes to the lower half until
one is left; leaves are added in order. Every step adds arrays element by element, so that the result
depends neither on the CPU nor on how the work is cut up. `np.add.reduce` is used only over the rows, an
outer axis, along which numpy adds whole rows in turn (a test compares it with the loop).

Elements that are not finite are left out of sums and maxima, and counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF
from mergepipe.stats.loops import LANES, LOOPS_BYTES, PRODUCTS, ROWS, Products, Wide, add_rows
from mergepipe.stats.sketch import SKETCH, SketchSigns

__all__ = ["LANES", "BaseLeaf", "BaseLeaves", "DeltaBatch", "DeltaLeaves", "LeafAdder", "Wide", "add_rows", "halve"]

# Of the products: δ with the sketch's signs, which come last.
_SIGNED: Final = PRODUCTS - 1


def halve(lanes: Wide, left: int) -> Wide:
    """Add the upper half of the last axis to the lower until `left` lanes remain; works in place."""
    while lanes.shape[-1] > left:
        half = lanes.shape[-1] // 2
        np.add(lanes[..., :half], lanes[..., half:], out=lanes[..., :half])
        lanes = lanes[..., :half]
    return lanes


class LeafAdder:
    """Sums single rows of numbers by the leaf tree, for facts of whole tensors."""

    def __init__(self, width: int) -> None:
        self._products = np.zeros((width, ROWS, LANES))
        self._lanes = np.empty((width, LANES))

    def row(self, number: int, count: int) -> Wide:
        """Where to write the `count` numbers of row `number`; zeros follow them already."""
        flat: Wide = self._products[number].reshape(-1)
        flat[count : _rows(count) * LANES] = 0.0
        own: Wide = flat[:count]
        return own

    def sums(self, count: int) -> Wide:
        """One sum a row, of `count` numbers each."""
        add_rows(self._products[:, : _rows(count)], self._lanes)
        sums: Wide = halve(self._lanes, 1)[:, 0].copy()
        return sums


@dataclass(frozen=True, slots=True, eq=False)
class BaseLeaf:
    """One leaf of the base: its values in float64 with zeros for what is not finite, and its facts."""

    values: Wide
    square: float
    largest: float
    nonfinite: int


class BaseLeaves:
    """Facts of the base, leaf by leaf. A leaf's `values` are overwritten by the next."""

    def __init__(self) -> None:
        self._wide = np.empty(LEAF)
        self._adder = LeafAdder(1)

    def add(self, values: FloatArray) -> BaseLeaf:
        """`values` is one leaf (1 to 65,536 elements), float32 or float64."""
        wide = self._wide[: values.size]
        np.copyto(wide, values)
        square = self._adder.row(0, values.size)
        np.abs(wide, out=square)
        largest = float(square.max())
        nonfinite = 0
        if not math.isfinite(largest):
            odd = ~np.isfinite(wide)
            nonfinite = int(np.count_nonzero(odd))
            wide[odd] = 0.0
            largest = float(np.abs(wide).max())
        np.multiply(wide, wide, out=square)
        return BaseLeaf(wide, float(self._adder.sums(values.size)[0]), largest, nonfinite)


@dataclass(frozen=True, slots=True, eq=False)
class DeltaLeaves:
    """Facts of one leaf of several experts' deltas; rows run over the experts in the order they were added.

    `sums` holds Σδ², Σ|δ| and Σθ₀δ, `largest` max|δ|, `counts` the nonzeros and the non-finites, `sketch` the
    leaf's part of the block's sketch.
    """

    sums: Wide
    largest: Wide
    counts: NDArray[np.int64]
    sketch: Wide


class DeltaBatch:
    """Facts of one leaf of up to `width` experts' deltas at a time, whose last additions are made together."""

    def __init__(self, width: int, signs: SketchSigns) -> None:
        self._signs = signs
        self._lanes = np.empty((width, PRODUCTS, LANES))
        self._largest = np.zeros(width)
        self._counts = np.zeros((width, 2), np.int64)
        self._filled = 0

    @property
    def full(self) -> bool:
        return self._filled == len(self._lanes)

    def products(self, base: Wide) -> Products:
        """Where the next expert's products are to be summed; `base` is the leaf's θ₀."""
        return Products(base, self._signs.pattern, self._lanes[self._filled])

    def add(self, largest: float, nonzero: int, nonfinite: int) -> None:
        """One expert, whose products have been summed where `products` said."""
        self._largest[self._filled] = largest
        self._counts[self._filled] = nonzero, nonfinite
        self._filled += 1

    def finish(self, leaf: int) -> DeltaLeaves:
        """The facts of all that was added since the last call; `leaf` is the leaf's number within its block."""
        count, self._filled = self._filled, 0
        lanes = self._lanes[:count]
        sketch = halve(lanes, SKETCH)[:, _SIGNED] * self._signs.leaf(leaf)
        sums = halve(lanes[:, :_SIGNED, :SKETCH], 1)[..., 0]
        # Adding zero leaves no negative zero.
        return DeltaLeaves(sums + 0.0, self._largest[:count].copy(), self._counts[:count].copy(), sketch)


def _rows(count: int) -> int:
    return -(-count // LANES)


def workspace_bytes(width: int) -> int:
    """Bytes that one `BaseLeaves` and one `DeltaBatch` of `width` take, loops included."""
    return (1 + 1) * LEAF * 8 + LOOPS_BYTES + (width * PRODUCTS + 1) * LANES * 8
