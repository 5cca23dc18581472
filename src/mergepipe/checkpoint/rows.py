"""Row maps: a tensor whose rows are rows of several stored tensors, in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.errors import FormatError

Rows = NDArray[np.int64]
NONE: Final = -1


@dataclass(frozen=True, slots=True)
class RowMap:
    """How the rows of one output tensor's inputs are put together; places count the inputs, the base first.

    Row r of place p is its own row, where `own[p]` gives one; else the mean of the rows that `given[q]` gives
    for r, over all places q in order (one: that row as it is; none: zeros). Rows from `filled` on are padding:
    the mean of all rows before, of each place's own. A map is a text of runs, each three numbers: first row,
    count, first source row.
    """

    rows: int
    filled: int
    own: tuple[str, ...]
    given: tuple[str, ...]

    @property
    def places(self) -> int:
        return len(self.own)


class RowTable:
    """A row map laid out: `own` and `given` of shape (places, rows), −1 for none; `givers` of shape (rows,)."""

    def __init__(self, rows: RowMap) -> None:
        self.map = rows
        self.own = np.stack([_laid_out(runs, rows.rows) for runs in rows.own])
        self.given = np.stack([_laid_out(runs, rows.rows) for runs in rows.given])
        self.givers = (self.given >= 0).sum(axis=0)

    @cached_property
    def read_rows(self) -> tuple[int, ...]:
        """How many rows are read of each place when all places are filled together, each row once for each use."""
        mine, given = self.own >= 0, (self.given >= 0) & (self.given != self.own)
        return tuple(int(count) for count in mine.sum(axis=1) + given.sum(axis=1))

    @cached_property
    def averaged(self) -> bool:
        """Whether some row is a mean of several."""
        return bool((self.givers > 1).any())


def row_map(own: Sequence[Rows], given: Sequence[Rows], rows: int) -> RowMap:
    """A map from arrays over the filled rows; what no place lacks is not kept as given. `rows` may be more."""
    lacking = np.zeros(own[0].shape, np.bool_)
    for mine in own:
        lacking |= mine < 0
    wanted = [np.where(lacking, each, NONE) for each in given]
    return RowMap(rows, own[0].size, tuple(_runs(each) for each in own), tuple(_runs(each) for each in wanted))


def is_identity(rows: RowMap, stored: Sequence[int]) -> bool:
    """Whether every place, of `stored` rows each, is taken as it is."""
    whole = f"0 {rows.rows} 0" if rows.rows else ""
    return all(count == rows.rows for count in stored) and all(runs == whole for runs in rows.own)


def pieces(sources: Rows, first_row: int, start: int, stop: int, row: int) -> Iterator[tuple[int, int, int]]:
    """Runs of elements `[start, stop)` that lie together in the source: (from `start` on, count, source element).

    `sources[i]` is the source row of row `first_row + i`, of `row` elements; rows without one are left out.
    """
    breaks = np.flatnonzero((np.diff(sources) != 1) | (sources[:-1] < 0)) + 1
    edges = [0, *breaks.tolist(), sources.size]
    for one, other in pairwise(edges):
        source = int(sources[one]) if one < other else NONE
        if source < 0:
            continue
        begin = (first_row + one) * row
        low, high = max(start, begin), min(stop, (first_row + other) * row)
        yield low - start, high - low, source * row + low - begin


def _laid_out(runs: str, rows: int) -> Rows:
    sources = np.full(rows, NONE, np.int64)
    try:
        firsts, counts, starts = np.array(runs.split(), np.int64).reshape(-1, 3).T
    except ValueError:
        raise FormatError(f"plan: {runs!r:.40} is no map of rows; the plan is damaged") from None
    if firsts.size and not (firsts.min() >= 0 and counts.min() > 0 and (firsts + counts).max() <= rows):
        raise FormatError(f"plan: {runs!r:.40} maps rows beyond the {rows:,} there are; the plan is damaged")
    # Within a run both numbers grow together: what is added to one number over all runs gives the other.
    steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    sources[np.repeat(firsts, counts) + steps] = np.repeat(starts, counts) + steps
    return sources


def _runs(sources: Rows) -> str:
    return " ".join(f"{first} {count} {source}" for first, count, source in pieces(sources, 0, 0, sources.size, 1))
