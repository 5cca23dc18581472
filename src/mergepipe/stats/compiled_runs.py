"""Runs of leaves, compiled: what the second-level cache holds is worked through by loops that fill wide registers.

Each loop is simple and over few arrays, which is what the compiler turns into such instructions. It neither
contracts nor reorders (`fastmath` is off), and sums are added in the order that the leaf tree fixes.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF
from mergepipe.stats.loops import LANES, PRODUCTS, TOP
from mergepipe.stats.runs import RUN, BaseRun, Closed, DeltaRun
from mergepipe.stats.sketch import SKETCH, SketchSigns

# Elements worked through at once: four rows of lanes, so that a lane's sum is loaded and stored once for four.
_GROUP: Final = 4 * LANES
# Tables counted into in turn: one would wait for the last count to be stored before the same is loaded again.
_TABLES: Final = 4
# Entries of a table skipped at once where they are zero.
_STRIDE: Final = 64
# Patterns at once of which it is asked whether any is irregular.
_GLANCE: Final = 64
_INFINITY: Final = 0x7F80_0000

_VALUE: Final = np.uint32(0x7FFF_FFFF)
_LOW: Final = np.uint32(0xFFFF)
_HALF: Final = np.uint32(16)


class CompiledRuns:
    """See `mergepipe.stats.runs.Runs`."""

    def __init__(self) -> None:
        self._signs = SketchSigns().pattern.astype(np.float32)
        delta, base = np.empty(_GROUP, np.float32), np.empty(_GROUP, np.float32)
        lanes, tables = np.empty(PRODUCTS * LANES), np.zeros(_TABLES * TOP, np.uint16)
        self._work = delta, delta.view(np.uint32), base, base.view(np.uint32), lanes
        self._tables = tables
        self._irregular = np.empty(2 * LEAF + 1, np.uint32)
        self._above = np.empty(2 * TOP, np.uint32)
        self._sums, self._sketch = np.empty((RUN, PRODUCTS - 1)), np.empty((RUN, SKETCH))
        self._found = np.empty((RUN, 7), np.int64)
        self._sizes = np.empty(LEAF, np.float32)

    def base(self, raw: NDArray[np.uint8], ends: NDArray[np.int64]) -> BaseRun:
        """See `Runs.base`."""
        _base(raw.view(np.uint16), ends, self._work, self._sums, self._found)
        return BaseRun(self._sums[: ends.size, 0], _floats(self._found[: ends.size, 0]))

    def delta(
        self,
        raw: NDArray[np.uint8],
        base: NDArray[np.uint8],
        ends: NDArray[np.int64],
        closes: NDArray[np.bool_],
        counts: NDArray[np.uint32],
        totals: NDArray[np.int64],
    ) -> DeltaRun:
        """See `Runs.delta`."""
        done = _delta(
            raw.view(np.uint16),
            base.view(np.uint16),
            ends,
            closes,
            self._signs,
            self._work,
            self._tables,
            counts,
            totals,
            (self._irregular, self._above),
            (self._sums, self._sketch, self._found),
        )
        irregular, closed = [], []
        at = above = 0
        for closing, (_, _, odd, zero, first, beyond, most) in zip(closes, self._found[:done].tolist(), strict=False):
            irregular.append(self._irregular[at : at + odd])
            at += odd
            closed.append(Closed(zero, first, self._above[above : above + beyond - first], most) if closing else None)
            above += beyond - first
        return DeltaRun(
            self._sums[:done],
            self._sketch[:done],
            _floats(self._found[:done, 0]),
            self._found[:done, 1],
            irregular,
            closed,
        )

    def sizes(self, raw: NDArray[np.uint8], base: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See `Runs.sizes`."""
        sizes = self._sizes[: raw.size // 2]
        _, _, decoded, bits, _ = self._work
        _absolute(raw.view(np.uint16), base.view(np.uint16), sizes, sizes.view(np.uint32), decoded, bits)
        return sizes


def _floats(patterns: NDArray[np.int64]) -> NDArray[np.float64]:
    return patterns.astype(np.uint32).view(np.float32).astype(np.float64)


@numba.njit(nogil=True, cache=True)
def _base(raw: Any, ends: Any, work: Any, sums: Any, found: Any) -> None:
    _, _, base, bits, lanes = work
    start = 0
    for leaf in range(ends.size):
        stop = ends[leaf]
        lanes[:LANES] = 0.0
        largest = np.uint32(0)
        for first in range(start, stop, _GROUP):
            part = raw[first : min(first + _GROUP, stop)]
            _widen(part, bits)
            _add_squares(base, lanes)
            largest = max(largest, _extremes(bits)[0])
        _halve(lanes[:LANES], 1)
        sums[leaf, 0] = lanes[0]
        found[leaf, 0] = largest
        start = stop


@numba.njit(nogil=True, cache=True)
def _delta(
    raw: Any,
    base_raw: Any,
    ends: Any,
    closes: Any,
    signs: Any,
    work: Any,
    tables: Any,
    counts: Any,
    totals: Any,
    room: Any,
    out: Any,
) -> Any:
    delta, bits, base, base_bits, lanes = work
    irregular, above = room
    sums, sketch, found = out
    start, odd, used = 0, 0, 0
    for leaf in range(ends.size):
        stop = ends[leaf]
        if odd + (stop - start) >= irregular.size or used + TOP > above.size:
            return leaf
        lanes[:] = 0.0
        before, nonzero, largest = odd, 0, np.uint32(0)
        for first in range(start, stop, _GROUP):
            last = min(first + _GROUP, stop)
            _widen(raw[first:last], bits)
            _widen(base_raw[first:last], base_bits)
            for n in range(_GROUP):
                delta[n] -= base[n]
            _add_products(delta, base, signs[first - start : first - start + _GROUP], lanes)
            odd = _count(bits, tables, irregular, odd)
            size, more = _extremes(bits)
            largest = max(largest, size)
            nonzero += more
        _gather(tables, np.int64(largest >> _HALF), counts)
        counts[0] -= np.uint32(-(stop - start) % _GROUP)  # zeros after the leaf's end
        found[leaf, 0], found[leaf, 1], found[leaf, 2] = largest, nonzero, odd - before
        if closes[leaf]:
            used += _close(counts, totals, above[used:], found[leaf])
        else:
            found[leaf, 3:] = 0
        for row in range(PRODUCTS):
            _halve(lanes[row * LANES : (row + 1) * LANES], SKETCH if row == PRODUCTS - 1 else 1)
        for row in range(PRODUCTS - 1):
            sums[leaf, row] = lanes[row * LANES] + 0.0  # no negative zero
        for n in range(SKETCH):
            sketch[leaf, n] = lanes[(PRODUCTS - 1) * LANES + n]
        start = stop
    return ends.size


@numba.njit(nogil=True, cache=True)
def _widen(part: Any, bits: Any) -> None:
    """Patterns of float32 from those of bfloat16, and zeros up to the group's end."""
    for n in range(part.size):
        bits[n] = np.uint32(part[n]) << _HALF
    for n in range(part.size, bits.size):
        bits[n] = 0


@numba.njit(nogil=True, cache=True)
def _absolute(raw: Any, base_raw: Any, sizes: Any, bits: Any, base: Any, base_bits: Any) -> None:
    for first in range(0, raw.size, _GROUP):
        last = min(first + _GROUP, raw.size)
        _widen(raw[first:last], bits[first:last])
        _widen(base_raw[first:last], base_bits)
        part = sizes[first:last]
        for n in range(part.size):
            part[n] = abs(part[n] - base[n])


@numba.njit(nogil=True, cache=True)
def _add_squares(base: Any, lanes: Any) -> None:
    for lane in range(LANES):
        n = np.uintp(lane)  # unsigned: no index is counted from the end
        v0, v1 = np.float64(base[n]), np.float64(base[n + np.uintp(LANES)])
        v2, v3 = np.float64(base[n + np.uintp(2 * LANES)]), np.float64(base[n + np.uintp(3 * LANES)])
        lanes[n] = (((lanes[n] + v0 * v0) + v1 * v1) + v2 * v2) + v3 * v3


@numba.njit(nogil=True, cache=True)
def _add_products(delta: Any, base: Any, signs: Any, lanes: Any) -> None:
    """Add four rows, one after another, to the lanes' sums. δ times a sign is exact in float32 too."""
    one, two, three = np.uintp(LANES), np.uintp(2 * LANES), np.uintp(3 * LANES)
    for lane in range(LANES):
        n = np.uintp(lane)
        v0, v1 = np.float64(delta[n]), np.float64(delta[n + one])
        v2, v3 = np.float64(delta[n + two]), np.float64(delta[n + three])
        lanes[n] = (((lanes[n] + v0 * v0) + v1 * v1) + v2 * v2) + v3 * v3
        lanes[n + one] = (((lanes[n + one] + abs(v0)) + abs(v1)) + abs(v2)) + abs(v3)
        b0, b1 = np.float64(base[n]), np.float64(base[n + one])
        b2, b3 = np.float64(base[n + two]), np.float64(base[n + three])
        lanes[n + two] = (((lanes[n + two] + v0 * b0) + v1 * b1) + v2 * b2) + v3 * b3
        s0, s1 = np.float64(delta[n] * signs[n]), np.float64(delta[n + one] * signs[n + one])
        s2, s3 = np.float64(delta[n + two] * signs[n + two]), np.float64(delta[n + three] * signs[n + three])
        lanes[n + three] = (((lanes[n + three] + s0) + s1) + s2) + s3


@numba.njit(nogil=True, cache=True)
def _halve(row: Any, least: Any) -> None:
    left = row.size // 2
    while left >= least:
        for n in range(left):
            row[n] += row[n + left]
        left //= 2


@numba.njit(nogil=True, cache=True)
def _extremes(bits: Any) -> Any:
    """The largest pattern without its sign, and how many are not ±0."""
    largest, nonzero = np.uint32(0), np.uint32(0)
    for n in range(bits.size):
        pattern = bits[n] & _VALUE
        largest = max(largest, pattern)
        nonzero += np.uint32(pattern != 0)
    return largest, np.int64(nonzero)


@numba.njit(nogil=True, cache=True)
def _count(bits: Any, tables: Any, irregular: Any, found: Any) -> Any:
    top = np.uint32(TOP - 1)
    one, two, three = np.uintp(TOP), np.uintp(2 * TOP), np.uintp(3 * TOP)
    for start in range(0, bits.size, _GLANCE):
        part = bits[start : start + _GLANCE]
        any_bits = np.uint32(0)
        for n in range(_GLANCE):
            any_bits |= part[n]
        for place in range(0, _GLANCE, _TABLES):
            at = np.uintp(place)
            tables[np.uintp((part[at] >> _HALF) & top)] += np.uint16(1)
            tables[np.uintp((part[at + np.uintp(1)] >> _HALF) & top) + one] += np.uint16(1)
            tables[np.uintp((part[at + np.uintp(2)] >> _HALF) & top) + two] += np.uint16(1)
            tables[np.uintp((part[at + np.uintp(3)] >> _HALF) & top) + three] += np.uint16(1)
        if any_bits & _LOW:
            for n in range(_GLANCE):
                pattern = part[n] & _VALUE
                irregular[found] = pattern
                found += (pattern & _LOW) != 0
    return found


@numba.njit(nogil=True, cache=True)
def _gather(tables: Any, largest: Any, counts: Any) -> None:
    """Add the tables to `counts`, and set them to zero; no entry beyond `largest` is used."""
    for start in range(0, largest + 1, _STRIDE):
        t0 = tables[start : start + _STRIDE]
        t1 = tables[TOP + start : TOP + start + _STRIDE]
        t2 = tables[2 * TOP + start : 2 * TOP + start + _STRIDE]
        t3 = tables[3 * TOP + start : 3 * TOP + start + _STRIDE]
        met = np.uint16(0)
        for n in range(_STRIDE):
            met |= t0[n] | t1[n] | t2[n] | t3[n]
        if met:
            into = counts[start : start + _STRIDE]
            for n in range(_STRIDE):
                into[n] += np.uint32(t0[n]) + np.uint32(t1[n]) + np.uint32(t2[n]) + np.uint32(t3[n])
            t0[:] = 0
            t1[:] = 0
            t2[:] = 0
            t3[:] = 0


@numba.njit(nogil=True, cache=True)
def _close(counts: Any, totals: Any, above: Any, found: Any) -> Any:
    """Add `counts` to `totals` and set them to zero; those from the first after entry 0 on are left in `above`."""
    zero = counts[0]
    totals[0] += zero
    counts[0] = 0
    first, beyond = TOP, 0
    for start in range(0, TOP, _STRIDE):
        part = counts[start : start + _STRIDE]
        met = np.uint32(0)
        for n in range(_STRIDE):
            met |= part[n]
        if met:
            first, beyond = min(first, start), start + _STRIDE
    if beyond:
        while counts[first] == 0:
            first += 1
        while counts[beyond - 1] == 0:
            beyond -= 1
    else:
        first = beyond = 1
    largest = counts[0]  # 0
    for n in range(first, beyond):
        totals[n] += counts[n]
        above[n - first] = counts[n]
        largest = max(largest, counts[n])
        counts[n] = 0
    found[3], found[4], found[5], found[6] = zero, first, beyond, largest
    return beyond - first
