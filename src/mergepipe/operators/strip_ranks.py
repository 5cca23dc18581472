"""The compiled loops' drop by rank: most verdicts need no more than a histogram of the row.

An entry is kept if its rank in the row is at least what its random bits ask for. Where its bits decide for every rank,
or its bucket of the histogram lies on one side of that rank, no rank is needed. Of the rest, a few in a hundred, each
is counted out, or, where they are many (few distinct magnitudes), the row is sorted.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np

_SIZE: Final = np.uint32(0x7FFF_FFFF)
_ZERO: Final = np.float32(0.0)
# A bucket's number is a pattern's upper 11 bits without the sign: eight to a power of two.
_SHIFT: Final = np.uint32(20)
_BUCKETS: Final = 1 << 11
# So many ranks are counted out, pattern by pattern, before sorting the row is quicker.
_COUNTED: Final = 96
_DIGIT: Final = 1 << 11


@numba.njit(nogil=True, cache=True)
def ranking_room(row: Any) -> Any:
    """Memory for `drop_by_rank` of rows of `row` elements: patterns, candidates, hard cases, order, spare; counts."""
    return np.empty((6, max(row, 1)), np.uint32), np.zeros((2, _BUCKETS), np.uint32), np.empty(_BUCKETS + 1, np.int32)


@numba.njit(nogil=True, cache=True)
def drop_by_rank(values: Any, uniform: Any, first: Any, beyond: Any, need: Any, room: Any) -> None:
    """Zero in a row what `mergepipe.core.random.ranked_keep_mask` does not keep; ±0 stays one of them.

    Of `uniform` bits below `first` every rank is kept, from `beyond` on none, and between them ranks from
    `need[bits − first]` on. All values are finite.
    """
    memory, counts, below = room
    sizes, undecided, hard = memory[0, : values.size], memory[1, : values.size], memory[2, : values.size]
    bits = values.view(np.uint32)
    for n in range(values.size):
        sizes[n] = np.uint32(bits[n] & _SIZE)
    _bucket(sizes, counts, below)
    found = 0
    for n in range(values.size):
        undecided[found] = n
        found += (uniform[n] >= first) & (uniform[n] < beyond) & (sizes[n] != 0)
    limit = np.uint32(beyond)
    for n in range(values.size):
        values[n] = values[n] if np.uint32(uniform[n]) < limit else _ZERO
    left = 0
    for m in range(found):
        n = undecided[m]
        rank = need[np.int32(uniform[n]) - first]
        bucket = sizes[n] >> _SHIFT
        hard[left] = n
        left += (rank > below[bucket]) & (rank < below[bucket + 1])
        values[n] = values[n] if rank < below[bucket + 1] else _ZERO
    if left > _COUNTED:
        _sort(sizes, memory[3, : values.size], memory[4, : values.size], memory[5, : values.size])
        ranks = memory[4, : values.size]
        for m in range(left):
            n = hard[m]
            if np.int32(ranks[n]) < need[np.int32(uniform[n]) - first]:
                values[n] = _ZERO
    else:
        for m in range(left):
            n = hard[m]
            if _rank(sizes, n) < need[np.int32(uniform[n]) - first]:
                values[n] = _ZERO


@numba.njit(nogil=True, cache=True)
def _bucket(sizes: Any, counts: Any, below: Any) -> None:
    """`below[b]` = how many patterns lie in buckets under b, for each b that holds any and the one after it."""
    least, most = sizes[0], sizes[0]
    for n in range(sizes.size):
        size = sizes[n]
        least = size if size < least else least
        most = size if size > most else most
    # Two tables in turn: to count twice in the same place, the first count must have been stored.
    for n in range(0, sizes.size - 1, 2):
        counts[0, sizes[n] >> _SHIFT] += np.uint32(1)
        counts[1, sizes[n + 1] >> _SHIFT] += np.uint32(1)
    if sizes.size % 2:
        counts[0, sizes[sizes.size - 1] >> _SHIFT] += np.uint32(1)
    seen = 0
    for bucket in range(least >> _SHIFT, (most >> _SHIFT) + 1):
        below[bucket] = seen
        seen += counts[0, bucket] + counts[1, bucket]
        counts[0, bucket] = 0
        counts[1, bucket] = 0
    below[(most >> _SHIFT) + 1] = seen


@numba.njit(nogil=True, cache=True)
def _rank(sizes: Any, place: Any) -> Any:
    """How many patterns are smaller than that at `place`, or equal to it and before it."""
    mine = sizes[place]
    rank = np.int32(0)
    for n in range(place):
        rank += np.int32(sizes[n] <= mine)
    for n in range(place + 1, sizes.size):
        rank += np.int32(sizes[n] < mine)
    return rank


@numba.njit(nogil=True, cache=True)
def _sort(sizes: Any, order: Any, ranks: Any, spare: Any) -> None:
    """The rank of every pattern, of equal ones the earlier first, by sorting digit after digit from the last."""
    starts = np.empty(_DIGIT, np.int32)
    for n in range(sizes.size):
        order[n] = n
    for shift in (0, 11, 22):
        starts[:] = 0
        for n in range(sizes.size):
            starts[(sizes[n] >> np.uint32(shift)) & np.uint32(_DIGIT - 1)] += 1
        seen = 0
        for digit in range(_DIGIT):
            count = starts[digit]
            starts[digit] = seen
            seen += count
        for n in range(sizes.size):
            place = order[n]
            digit = (sizes[place] >> np.uint32(shift)) & np.uint32(_DIGIT - 1)
            spare[starts[digit]] = place
            starts[digit] += 1
        order[:] = spare
    for n in range(sizes.size):
        ranks[order[n]] = n
