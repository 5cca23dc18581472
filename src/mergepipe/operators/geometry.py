"""What coefficient-resolved methods share: points, their lengths and angles, and the form `θ = a₀θ₀ + Σ cᵢδᵢ`.

A point is a row of coefficients over (θ₀, δ₁ … δ_K); lengths and angles follow from the Gram matrix of these.
Models that are nearly equal lose no digits so: their difference is formed in coefficients, where θ₀ cancels,
and only then measured. `‖x‖² + ‖y‖² − 2⟨x,y⟩` of the models themselves would leave nothing of it.

Everything is float64 by +, −, ×, ÷ and √, which every CPU rounds alike, and sine, cosine and arctangent of
Python's `math`: numpy's choose their instructions, and with them the last bit, by CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.arrays import Array
from mergepipe.errors import FormatError, RecipeError
from mergepipe.operators.additive import Mixture, negated_sum, omitted_sum, subtract_from_base
from mergepipe.operators.contract import AccessClass, Delta, Grain, Norms, Reads, TensorSpec, Tile
from mergepipe.operators.formula import Formula, FormulaMethod
from mergepipe.operators.parameters import to_tile
from mergepipe.stats.contract import GramNeed, GroupFact, GroupNeed, Need, VectorGramNeed

# Coefficients over (θ₀, δ₁ … δ_K), and a number for each vector of a tensor.
Point = Sequence[float]
Column = NDArray[np.float64]
Entry = TypeVar("Entry", float, Column)
# Entry [i][j] is ⟨·ᵢ,·ⱼ⟩ of (θ₀, δ₁ … δ_K): a number, or one for each vector.
Gram = Sequence[Sequence[Entry]]

# sin² of the angle at which float32 begins to tell a cosine from −1 (2⁻²⁵ away). Nearer than that to opposite, the
# plane of the arc is rounding noise, which dividing by the sine would make the result.
_OPPOSITE = 2.0**-24


@dataclass(frozen=True, slots=True)
class VectorCombination:
    """The same with numbers of their own for each row of `width` elements (`by_row`), or for each of `width` columns.

    `base` and `terms` hold them as arrays of the tile's dtype, in bytes, which compare and pickle at their size;
    `base` is empty where a₀ is 1 throughout. `gains` and `base_gain` are the largest magnitudes.
    """

    width: int
    by_row: bool
    wide: bool
    base: bytes
    terms: tuple[bytes, ...]
    gains: tuple[float, ...]
    base_gain: float

    @property
    def keeps_base(self) -> bool:
        return not self.base

    @property
    def uniform(self) -> bool:
        return False

    def bound(self, norms: Norms, read: Reads) -> Norms | str:
        """See `Operator.bound`."""
        return omitted_sum(self.gains, norms, read)

    def write(self, tile: Tile, out: Array) -> None:
        """The tile's result into `out`."""

        def write(term: int, delta: Delta, into: Array) -> None:
            delta(into)
            self._scale(tile, into, self.terms[term])

        negated_sum(tile, [1.0 if gain else 0.0 for gain in self.gains], write, out)
        if self.keeps_base:
            subtract_from_base(tile, 1.0, out)
            return
        base = tile.scratch.floats("term", tile.count)
        base[...] = tile.base
        self._scale(tile, base, self.base)
        # As `subtract_from_base`: −0.0 must not reach the base.
        tile.xp.add(out, 0.0, out=out)
        tile.xp.subtract(base, out, out=out)

    def _scale(self, tile: Tile, values: Array, packed: bytes) -> None:
        """Multiply each element of the tile by its vector's number, in place."""
        factors = np.frombuffer(packed, np.float64 if self.wide else np.float32)
        for part, rows, columns in _rectangles(tile.start, tile.count, self.width):
            view = values[part].reshape(rows.stop - rows.start, columns.stop - columns.start)
            # Copied, since torch takes no read-only memory; at most a tile's size.
            chosen = factors[rows].reshape(-1, 1).copy() if self.by_row else factors[columns].reshape(1, -1).copy()
            tile.xp.multiply(view, tile.xp.asarray(chosen), out=view)


class Resolved(FormulaMethod):
    """What methods are like whose coefficients follow from inner products: once resolved, additive."""

    access = AccessClass.RESOLVED
    grain = Grain.ELEMENT

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        return ((),) * len(spec.terms)

    def scratch_arrays(self, terms: int) -> int:
        # The second holds one tile's numbers by vector.
        return 2


# --- what is asked and answered -----------------------------------------------------------------


def gram_need(spec: TensorSpec, axis: int | None) -> GroupNeed:
    """Inner products over the whole tensor (`axis` None, or only one vector), or of each vector along `axis`."""
    return GramNeed() if axis is None or _vectors(spec, axis)[0] == 1 else VectorGramNeed(axis)


def gram_of(spec: TensorSpec, fact: GroupFact, axis: int | None = None) -> Gram[Column]:
    """The answer to `gram_need`, a column of numbers (of one for the whole tensor) an entry.

    Raises `RecipeError` where inputs are not finite, `FormatError` where the fact is not the tensor's.
    """
    count = 1 if axis is None else _vectors(spec, axis)[0]
    size = len(spec.terms) + 1
    found = np.asarray(fact["gram"], np.float64)
    if found.size != count * size * size:
        raise FormatError(
            f"{spec.name}: {found.size} inner products, {count * size * size} expected; the plan is damaged, plan again"
        )
    if not np.isfinite(found).all():
        raise RecipeError(
            f"{spec.name}: inner products of the inputs are not finite, so there is no angle between them; "
            "an input holds NaN, infinity or numbers whose squares overflow"
        )
    matrices = found.reshape(count, size, size)
    return [[np.ascontiguousarray(matrices[:, i, j]) for j in range(size)] for i in range(size)]


def whole_gram(spec: TensorSpec, fact: GroupFact) -> Gram[float]:
    """The answer to a `GramNeed`, in numbers; raises as `gram_of`."""
    return [[float(entry[0]) for entry in row] for row in gram_of(spec, fact)]


def combination(spec: TensorSpec, base: float, terms: Sequence[float]) -> Formula:
    """`a₀` and `cᵢ`, rounded once to the tile's dtype. Raises `RecipeError` where that overflows."""
    rounded = (to_tile(term, spec, f"the coefficient of expert {n + 1}") for n, term in enumerate(terms))
    return Formula.of_whole(Mixture(tuple(rounded), base=to_tile(base, spec, "the coefficient of the base")))


def vector_combination(
    spec: TensorSpec, axis: int | None, base: Column, terms: Sequence[Column]
) -> Formula | VectorCombination:
    """`a₀` and `cᵢ` of each vector, rounded once to the tile's dtype. Raises `RecipeError` where that overflows."""
    if axis is None or base.size == 1:
        return combination(spec, float(base[0]), [float(term[0]) for term in terms])
    rounded = []
    for column in (base, *terms):
        largest = float(np.max(np.abs(column)))
        to_tile(largest, spec, "the largest coefficient of a row or column")
        rounded.append(column.astype(np.float64 if spec.wide else np.float32))
    gains = [float(np.max(np.abs(column))) for column in rounded]
    return VectorCombination(
        width=_vectors(spec, axis)[1],
        by_row=axis == -1,
        wide=spec.wide,
        base=b"" if (rounded[0] == 1.0).all() else rounded[0].tobytes(),
        terms=tuple(column.tobytes() for column in rounded[1:]),
        gains=tuple(gains[1:]),
        base_gain=gains[0],
    )


def _vectors(spec: TensorSpec, axis: int) -> tuple[int, int]:
    """How many vectors a tensor has along its last (−1) or first (0) dimension, and how many elements a row.

    Rows are what the last dimension makes for −1 (element e is in vector e // width), what the first makes for 0
    (it is in vector e % width). A tensor of fewer than two dimensions, or without elements, is one vector.
    """
    shape = spec.shape or (spec.elements,)
    if not spec.elements:
        return 1, 1
    return (spec.elements // shape[-1], shape[-1]) if axis == -1 else (spec.elements // shape[0],) * 2


def _rectangles(start: int, count: int, width: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut a tile into runs of whole rows, and the parts of rows before and after: (elements, rows, columns)."""
    at, end = start, start + count
    while at < end:
        row, column = divmod(at, width)
        rows = 1 if column else max(1, (end - at) // width)
        columns = slice(column, min(width, column + end - at))
        stop = at + rows * (columns.stop - columns.start)
        yield slice(at - start, stop - start), slice(row, row + rows), columns
        at = stop


# --- geometry -----------------------------------------------------------------------------------


def inner(gram: Gram[Entry], left: Point, right: Point) -> Entry:
    """⟨left, right⟩."""
    total = gram[0][0] * 0.0
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            if a and b:
                total = total + a * b * gram[i][j]
    return total


def length(gram: Gram[float], point: Point) -> float:
    """‖point‖."""
    return math.sqrt(max(inner(gram, point, point), 0.0))


def models(terms: int) -> list[Point]:
    """The models as points: θ₀, then θ₀ + δᵢ."""
    return [(1.0, *delta[1:]) for delta in [(0.0,) * (terms + 1), *deltas(terms)]]


def deltas(terms: int) -> list[Point]:
    """The task vectors as points."""
    return [tuple(float(i == term) for i in range(terms + 1)) for term in range(1, terms + 1)]


@dataclass(frozen=True, slots=True)
class Arc:
    """Two points seen from the origin, for each vector: their lengths and the angle between them in [0, π].

    The sine keeps its digits between nearly equal models, where 1 − cos² has none; between others its square is right
    to about 1e-15. A point at the origin is at a right angle to everything.
    """

    lengths: tuple[Column, Column]
    cosine: Column
    sine: Column


def arc(gram: Gram[Column], x: Point, y: Point) -> Arc:
    """The arc from x to y."""
    x_length, y_length = (np.sqrt(np.maximum(inner(gram, p, p), 0.0)) for p in (x, y))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = inner(gram, x, y) / x_length / x_length
        # What of y is at right angles to x, formed before it is measured.
        rest = [b - share * a for a, b in zip(x, y, strict=True)]
        square = sum((rest[i] * rest[j] * gram[i][j] for i in range(len(rest)) for j in range(len(rest))), 0.0 * share)
        sine = np.clip(np.sqrt(np.maximum(square, 0.0)) / y_length, 0.0, 1.0)
        cosine = np.clip(share * x_length / y_length, -1.0, 1.0)
    lost = (x_length == 0.0) | (y_length == 0.0)
    return Arc((x_length, y_length), np.where(lost, 0.0, cosine), np.where(lost, 1.0, sine))


def shortened(found: Arc, shrink: Column) -> Arc:
    """The arc whose cosine is `shrink` times as large (0 ≤ `shrink` ≤ 1)."""
    cosine = found.cosine * shrink
    sine = np.sqrt((1.0 - cosine) * (1.0 + cosine))
    return Arc(found.lengths, cosine, np.where(shrink == 1.0, found.sine, sine))


def nearly_opposite(found: Arc) -> NDArray[np.bool_]:
    """Where the two points are as good as opposite, so that no plane through them is to be had."""
    opposite: NDArray[np.bool_] = (found.cosine < 0.0) & (found.sine**2 <= _OPPOSITE)
    return opposite


def along_arc(found: Arc, t: float, straight: NDArray[np.bool_]) -> tuple[Column, Column, Column]:
    """Factors of x and y, and their sum, at `t` of the way: by sines, or linear where `straight` or at one point."""
    angle = _each(math.atan2, found.sine, found.cosine)
    sine = _each(math.sin, angle)
    linear = straight | (sine == 0.0)
    safe = np.where(linear, 1.0, sine)
    first = np.where(linear, 1.0 - t, _each(math.sin, (1.0 - t) * angle) / safe)
    second = np.where(linear, t, _each(math.sin, t * angle) / safe)
    return first, second, np.where(linear, 1.0, first + second)


def _each(function: Callable[..., float], *columns: Column) -> Column:
    return np.array([function(*each) for each in zip(*(column.tolist() for column in columns), strict=True)])
