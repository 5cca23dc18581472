"""Inner products of a base and several deltas: over a whole tensor, or over each of its rows or columns.

All products and sums are float64. Nothing is left out: where an input is not finite, neither is the result, for
there is no angle to be had from the rest.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Final

import numpy as np

from mergepipe.core.leaves import LEAF
from mergepipe.stats.accumulators import Wide, add_rows
from mergepipe.stats.contract import GramNeed, GroupFact, VectorGramNeed
from mergepipe.stats.group import Demand, Geometry, GroupLook, GroupTile
from mergepipe.stats.rows import RowSums, row_sums_bytes

# Rows of a matrix whose products are added one after another, before such sums are.
_RUN: Final = 64


def gram_demand(need: GramNeed | VectorGramNeed, geometry: Geometry) -> Demand:
    """Tiles of whole vectors, or leaves of one; for columns, of whole rows or leaves of one."""
    inputs, pairs = geometry.terms + 1, len(_pairs(geometry.terms + 1))
    wide = inputs * LEAF * 8
    if _by_column(need):
        width = _width(geometry)
        sums = 2 * pairs * width * 8 + _matrices_bytes(width, inputs)
        return Demand(width, False, wide + sums + (LEAF + min(width, LEAF)) * 8, 1, 1)
    length = _length(need, geometry)
    vectors = geometry.elements // length
    totals = vectors * pairs * 8 + _matrices_bytes(vectors, inputs)
    return Demand(length, False, wide + totals + row_sums_bytes(LEAF, min(length, LEAF)), 1, 1)


class RowGram:
    """Of vectors that lie one after another: a tensor as one vector, or each of its rows.

    A vector is summed over its leaves, by the tree of `accumulators`.
    """

    def __init__(self, need: GramNeed | VectorGramNeed, geometry: Geometry) -> None:
        inputs = geometry.terms + 1
        self._length = _length(need, geometry)
        self._pairs = _pairs(inputs)
        self._wide = np.empty((inputs, LEAF))
        self._sums = RowSums(LEAF, min(self._length, LEAF))
        self._totals = np.zeros((geometry.elements // self._length, len(self._pairs)))

    def feed(self, tile: GroupTile) -> None:
        wide = _widened(tile, self._wide)
        rows = max(1, tile.base.size // self._length)
        length = tile.base.size // rows
        vectors = wide.reshape(len(wide), rows, length)
        first = tile.start // self._length
        totals = self._totals[first : first + rows]
        for place, (one, other) in enumerate(self._pairs):
            np.multiply(vectors[one], vectors[other], out=self._sums.room(rows, length))
            totals[:, place] += self._sums.sums()

    def finish(self, look: GroupLook) -> GroupFact:
        return {"gram": _matrices(self._totals, len(self._wide))}


class ColumnGram:
    """Of the columns of a matrix: of what has one place in all entries of the first dimension.

    64 rows are added one after another, then such sums in order.
    """

    def __init__(self, need: VectorGramNeed, geometry: Geometry) -> None:
        inputs, self._width = geometry.terms + 1, _width(geometry)
        self._rows = geometry.shape[0]
        self._pairs = _pairs(inputs)
        self._wide = np.empty((inputs, LEAF))
        self._products = np.empty(LEAF + min(self._width, LEAF))
        self._run = np.zeros((len(self._pairs), self._width))
        self._totals = np.zeros_like(self._run)

    def feed(self, tile: GroupTile) -> None:
        wide = _widened(tile, self._wide)
        first, column = divmod(tile.start, self._width)
        rows = max(1, tile.base.size // self._width)
        columns = slice(column, column + tile.base.size // rows)
        matrices = wide.reshape(len(wide), rows, -1)
        row = first
        while row < first + rows:
            end = min(first + rows, (row // _RUN + 1) * _RUN)
            self._add(matrices[:, row - first : end - first], columns)
            if end % _RUN == 0 or end == self._rows:
                self._totals[:, columns] += self._run[:, columns]
                self._run[:, columns] = 0.0
            row = end

    def finish(self, look: GroupLook) -> GroupFact:
        return {"gram": _matrices(self._totals.T, len(self._wide))}

    def _add(self, rows: Wide, columns: slice) -> None:
        _, count, width = rows.shape
        products = self._products[: (1 + count) * width].reshape(1 + count, width)
        for place, (one, other) in enumerate(self._pairs):
            run = self._run[place, columns]
            products[0] = run
            np.multiply(rows[one], rows[other], out=products[1:])
            add_rows(products, run)


def _by_column(need: GramNeed | VectorGramNeed) -> bool:
    return isinstance(need, VectorGramNeed) and need.axis == 0


def _width(geometry: Geometry) -> int:
    return geometry.elements // geometry.shape[0]


def _length(need: GramNeed | VectorGramNeed, geometry: Geometry) -> int:
    return geometry.elements if isinstance(need, GramNeed) else geometry.shape[-1]


def _pairs(inputs: int) -> list[tuple[int, int]]:
    return list(combinations_with_replacement(range(inputs), 2))


def _widened(tile: GroupTile, wide: Wide) -> Wide:
    """Base and deltas in float64, one a row."""
    rows = wide.reshape(-1)[: len(wide) * tile.base.size].reshape(len(wide), -1)
    for row, values in zip(rows, (tile.base, *tile.deltas), strict=True):
        np.copyto(row, values)
    return rows


def _matrices_bytes(vectors: int, inputs: int) -> int:
    """What `_matrices` takes beside the list: the matrices twice."""
    return 2 * vectors * inputs * inputs * 8


def _matrices(totals: Wide, inputs: int) -> list[float]:
    """The whole of the symmetric matrices, of which `totals` (vectors, pairs) has the upper halves."""
    places = np.empty((inputs, inputs), np.int64)
    for place, (one, other) in enumerate(_pairs(inputs)):
        places[one, other] = places[other, one] = place
    gram: list[float] = (totals[:, places] + 0.0).reshape(-1).tolist()
    return gram
