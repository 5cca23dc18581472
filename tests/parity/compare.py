"""How close two models are, element by element, and which elements no two programs need agree on.

The unit is one unit in the last place (ulp) of the output dtype at the largest magnitude involved in an element:
of the inputs there (base and experts) and of both results. So where terms cancel to something small, an error
is measured against what was subtracted, not against what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]

# Explicit significand bits and least exponent of a normal number.
_FORMATS = {"float32": (23, -126), "bfloat16": (7, -126)}

FLOAT32_ULPS = 64
BFLOAT16_ULPS = 1


def ulp(magnitude: Floats, kind: str) -> Floats:
    """One unit in the last place of `kind` at these magnitudes."""
    bits, least = _FORMATS[kind]
    exponents = np.frexp(np.abs(magnitude.astype(np.float64)))[1] - 1
    unit: Floats = np.ldexp(1.0, np.maximum(exponents, least) - bits)
    return unit


@dataclass(frozen=True, slots=True)
class Distance:
    """The largest difference of one tensor, in units in the last place of the output dtype, and where it is.

    `within` says whether every compared element is near enough; `compared` counts them.
    """

    worst: float
    where: int
    within: bool
    compared: int


def distance(
    inputs: Sequence[Floats], mine: Floats, theirs: Floats, kind: str, excluded: Mask | None = None
) -> Distance:
    """Compare one tensor; `kind` is the output dtype, `inputs` are what it was merged from.

    float32 may differ by 64 ulp. bfloat16 by one ulp at the magnitude of the results; where they cancel to
    something small, by what float32 may differ. A NaN or infinity on either side is as far as can be.
    """
    left, right = mine.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    result = np.maximum(np.abs(left), np.abs(right))
    scale = result.copy()
    for values in inputs:
        scale = np.maximum(scale, np.abs(values.astype(np.float64).ravel()))
    with np.errstate(invalid="ignore"):
        error = np.abs(left - right)
        error[~np.isfinite(error)] = np.inf
        scale[~np.isfinite(scale)] = 1.0
        result[~np.isfinite(result)] = 1.0
    allowed = FLOAT32_ULPS * ulp(scale, "float32")
    unit = ulp(scale, "float32")
    if kind == "bfloat16":
        unit = ulp(result, "bfloat16")
        allowed = np.maximum(allowed, BFLOAT16_ULPS * unit)
    counted = np.ones(error.size, np.bool_) if excluded is None else ~excluded.ravel()
    if not counted.any():
        return Distance(0.0, 0, True, 0)
    relative = np.where(counted, error / unit, -1.0)
    # The worst offender if there is one, else the largest difference.
    beyond = counted & (error > allowed)
    where = int(np.argmax(np.where(beyond, relative, -1.0))) if beyond.any() else int(np.argmax(relative))
    return Distance(float(relative[where]), where, not beyond.any(), int(counted.sum()))


# ------------------------------------------------------------ what is excluded, and why


def ambiguous_ranks(magnitudes: Floats, first: int, last: int) -> Mask:
    """Elements of a magnitude that both is and is not kept, where ranks `[first, last)` in ascending order are.

    Which of several equal magnitudes are kept is each program's own affair; of zeros it makes no difference.
    """
    flat = magnitudes.ravel()
    ordered = np.sort(flat)
    excluded = np.zeros(flat.size, np.bool_)
    for edge in (first, last):
        if 0 < edge < flat.size and ordered[edge - 1] == ordered[edge]:
            excluded |= flat == ordered[edge]
    excluded &= flat != 0
    return excluded


def ambiguous_row_ranks(magnitudes: Floats) -> Mask:
    """Elements, not zeros, whose magnitude occurs more than once in their row: their order in it is not defined."""
    rows = magnitudes.reshape(-1, magnitudes.shape[-1]) if magnitudes.ndim else magnitudes.reshape(1, 1)
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    same = ordered[:, 1:] == ordered[:, :-1]
    repeated = np.zeros(rows.shape, np.bool_)
    repeated[:, 1:] |= same
    repeated[:, :-1] |= same
    excluded = np.zeros(rows.shape, np.bool_)
    np.put_along_axis(excluded, order, repeated, axis=1)
    excluded &= rows != 0
    return excluded.ravel()


def near(values: Floats, threshold: float, relative: float, noise: Floats | float = 0.0) -> Mask:
    """Elements so near a threshold that rounding decides on which side they are; `noise` is each value's own."""
    close: Mask = np.abs(values.ravel() - threshold) <= relative * abs(threshold) + noise
    return close


def drawn_elections(votes: list[Floats]) -> Mask:
    """Elements whose votes cancel down to rounding: the order of summation decides the elected sign.

    Two votes have one order only; a draw between them goes to plus in both programs.
    """
    if len(votes) <= 2:
        return np.zeros(votes[0].size, np.bool_)
    wide = np.stack([vote.astype(np.float64).ravel() for vote in votes])
    total, cast = np.abs(wide.sum(axis=0)), np.abs(wide).sum(axis=0)
    cancelled: Mask = (total <= len(votes) * 2.0**-23 * cast) & (cast > 0)
    return cancelled
