"""Exact order statistics of |δ| in bounded memory, by counting on the bit patterns of floats.

The bits of a non-negative float, read as an integer, are ordered as the float is, so the k-th magnitude
is found by counting 16 bits at a time from the top. bf16 deltas have many equal magnitudes: to keep
exactly k, the k-th comes with a cut, the position of the last element kept among its equals.

One look at the data is enough for most deltas of 16-bit and 8-bit models, whose magnitudes seldom use
the lower half of a float32: of each run of elements, a *record*, the counts of the upper 16 bits are
kept, and the few patterns that have lower bits are kept as they are. From these follow the thresholds,
and the record in which each cut lies; only such records are looked at again. Where too much would have
to be kept (float32 models), further looks count the lower bits of the patterns in question, a digit at
a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import FloatArray
from mergepipe.core.leaves import LEAF, leaf_spans
from mergepipe.stats.contract import Fact
from mergepipe.stats.loops import TOP, Bits, Loops, Tally
from mergepipe.stats.runs import DeltaRun

Counts = NDArray[np.int64]
Span = tuple[int, int]
# Called with spans of elements in ascending order, gives |δ| in tiles that cover just these, in order:
# (position of the tile's first element, magnitudes). A tile lies within one span.
Look = Callable[[Sequence[Span]], Iterator[tuple[int, FloatArray]]]

_DIGIT_BITS: Final = 8
_DIGITS: Final = 1 << _DIGIT_BITS
_RECORDS: Final = 2048
# Up to here sorting is quicker than counting.
_SORTED: Final = 4096
# Bytes of temporaries a selected pattern takes while its bucket is put in order.
_SELECTED_BYTES: Final = 32
LEAST_WORKING: Final = 1 << 20
# What `Magnitudes` takes whatever its room: counters of the whole and of a record, a leaf's irregular patterns.
FIXED_BYTES: Final = TOP * 12 + 8 * (LEAF + 1)
# Temporaries of a leaf while it is counted; one `Magnitudes` takes them at a time.
LEAF_BYTES: Final = 2 * TOP * 8 + 32 * LEAF


@dataclass(frozen=True, slots=True)
class MagnitudeCut:
    """Keep `|δ| > threshold`, and `|δ| = threshold` at positions up to `cut` inclusive."""

    threshold: float
    cut: int

    @property
    def fact(self) -> Fact:
        """As a `TrimNeed` is answered."""
        return {"threshold": self.threshold, "cut": self.cut}


def kept_count(density: float, total: int) -> int:
    """How many of `total` elements are kept: `max(1, int(density · total))`, at most all."""
    return min(total, max(1, int(density * total)))


def useful_room(elements: int, compute: np.dtype[Any]) -> int:
    """The room in which one look suffices for deltas of 16-bit models: a sixteenth of the patterns irregular."""
    if elements <= _SORTED:
        return 0
    records = math.ceil(elements / _record_size(elements))
    return elements // 16 * compute.itemsize + records * (12 << 10)


def useful_working(elements: int) -> int:
    """Bytes `finish` takes for such deltas, beside room and `FIXED_BYTES`."""
    return max(LEAST_WORKING, elements // 64 * _SELECTED_BYTES)


def further_looks(compute: np.dtype[Any]) -> int:
    """How often at most `Magnitudes.finish` looks again: a digit at a time, and for the positions."""
    return (8 * compute.itemsize - 16) // _DIGIT_BITS + 1


class Magnitudes:
    """Several order statistics of one delta: of ranks from 1, the largest, the magnitude and the cut.

    `total` elements count, of which the first `elements` are fed (in order, once, as |δ| in `compute`
    precision) and the rest are zeros. At most `room` bytes are kept beside `FIXED_BYTES`, and
    `finish` takes `working` bytes (at least `LEAST_WORKING`) more. NaN counts as larger than infinity; a
    k-th magnitude that is not finite is given as the largest finite number with cut −1.
    """

    def __init__(
        self,
        elements: int,
        total: int,
        compute: np.dtype[Any],
        room: int,
        working: int,
        loops: Loops,
    ) -> None:
        self._elements, self._total, self._room, self._working = elements, total, room, working
        self._compute, self._loops = compute, loops
        self._bits: np.dtype[Any] = np.dtype(f"u{compute.itemsize}")
        self._shift = 8 * compute.itemsize - 16
        few = elements <= _SORTED
        self._few: Bits | None = np.empty(elements, self._bits) if few else None
        self._size = _record_size(elements)
        leaf = 0 if few else min(LEAF, elements)
        self._tally = Tally(np.zeros(0 if few else TOP, np.uint32), np.empty(leaf + 1, self._bits))
        self._filled = self._closed = 0
        self._top: Counts = np.zeros(0 if few else TOP, np.int64)
        self._records: list[_Record] | None = []
        self._irregular: list[Bits] = []
        self._kept_bytes = 0

    @property
    def tally(self) -> Tally | None:
        """Where leaves are to be counted before they are `counted`; None if deltas are to be `stored` instead."""
        return self._tally if self._few is None else None

    def counted(self, size: int, irregular: int) -> None:
        """The next `size` elements, at most a leaf, have been counted."""
        if irregular and self._records is not None:
            self._keep(self._tally.irregular[:irregular].copy())
        self._filled += size
        if self._filled >= self._size:
            self._close_record()

    @property
    def totals(self) -> Counts:
        """Where a record's counts are added to when it is closed."""
        return self._top

    def closes(self, sizes: Sequence[int]) -> NDArray[np.bool_]:
        """Which of the next leaves, of these sizes, complete a record."""
        filled, closing = self._filled, []
        for size in sizes:
            closing.append(filled + size >= self._size)
            filled = 0 if closing[-1] else filled + size
        return np.array(closing)

    def counted_run(self, sizes: Sequence[int], run: DeltaRun) -> None:
        """The next leaves, of these sizes, have been counted, and those that complete a record have closed it."""
        for size, irregular, closed in zip(sizes, run.irregular, run.closed, strict=True):
            if irregular.size and self._records is not None:
                self._keep(irregular.copy())
            self._filled += size
            if closed is not None:
                self._closed_record(closed.zero, closed.lowest, closed.counts, closed.largest)

    def stored(self, start: int, delta: FloatArray) -> None:
        """The next run of δ or |δ|; `start` is the position of its first element."""
        assert self._few is not None
        few = self._few[start : start + delta.size]
        np.bitwise_and(delta.view(self._bits), (1 << (8 * delta.itemsize - 1)) - 1, out=few)

    def feed(self, start: int, delta: FloatArray) -> None:
        """`counted` or `stored` of the next run of δ or |δ|, of any length."""
        if self._few is not None:
            self.stored(start, delta)
            return
        for first, stop in leaf_spans(delta.size):
            patterns = delta[first:stop].view(self._bits)
            self.counted(patterns.size, self._loops.count(patterns, self._tally))

    def finish(self, look: Look, ranks: Sequence[int]) -> list[MagnitudeCut]:
        """One cut a rank (from 1, the largest); looks again at what is not known yet."""
        if self._few is not None:
            return self._finish_few(self._few, ranks)
        if self._filled:
            self._close_record()
        self._top[0] += self._total - self._elements
        spots = self._locate(ranks)
        if spots is None:
            self._records = None
            return self._descent().cuts(ranks, look)
        return self._look_up(spots, [record.span for record in self._records or ()], look)

    # --- the first look

    def _keep(self, irregular: Bits) -> None:
        self._irregular.append(irregular)
        self._kept_bytes += irregular.nbytes + 128
        if self._kept_bytes > self._room:
            self._records = None
            self._irregular = []

    def _close_record(self) -> None:
        counts = self._tally.counts
        first, beyond, largest = self._loops.close(counts, self._top)
        self._closed_record(int(counts[0]), first, counts[first:beyond], largest)
        counts.fill(0)

    def _closed_record(self, zero: int, lowest: int, counts: NDArray[np.uint32], largest: int) -> None:
        span = self._closed, self._closed + self._filled
        self._closed, self._filled = span[1], 0
        if self._records is None:
            return
        above = counts.astype(np.min_scalar_type(largest))
        irregular = np.concatenate(self._irregular) if self._irregular else np.empty(0, self._bits)
        self._irregular = []
        self._records.append(_Record(span, zero, lowest, above, irregular))
        self._kept_bytes += above.nbytes + 256
        if self._kept_bytes > self._room:
            self._records = None

    # --- what follows from it

    def _finish_few(self, patterns: Bits, ranks: Sequence[int]) -> list[MagnitudeCut]:
        order = np.argsort(~patterns, kind="stable")
        cuts = []
        for rank in ranks:
            if rank > patterns.size:  # all that was fed, and zeros after it
                cuts.append(MagnitudeCut(0.0, rank - 1))
            else:
                position = int(order[rank - 1])
                cuts.append(_cut(int(patterns[position]), position, self._compute))
        return cuts

    def _locate(self, ranks: Sequence[int]) -> list[_Spot] | None:
        """Threshold of every rank and where its cut lies, or None if too little was kept to know."""
        if self._records is None:
            return None
        buckets, inner = _find(self._top, ranks)
        needed = np.unique(buckets)
        slot = np.full(TOP, -1, np.int16)
        slot[needed] = np.arange(needed.size)
        regular = np.zeros((len(self._records), needed.size), np.int64)
        found: list[Bits] = []
        owners: list[NDArray[np.int32]] = []
        selected = 0
        for number, record in enumerate(self._records):
            regular[number] = record.counts_of(needed)
            slots = slot.take((record.irregular >> self._shift).astype(np.int64))
            chosen = np.flatnonzero(slots >= 0)
            selected += chosen.size
            if selected * _SELECTED_BYTES > self._working:
                return None
            regular[number] -= np.bincount(slots[chosen], minlength=needed.size)
            found.append(record.irregular[chosen])
            owners.append(np.full(chosen.size, number, np.int32))
        patterns, owner = np.concatenate(found), np.concatenate(owners)
        order = np.argsort(patterns, kind="stable")
        patterns, owner = patterns[order], owner[order]
        starts = np.searchsorted(patterns >> self._shift, needed, "left")
        stops = np.searchsorted(patterns >> self._shift, needed, "right")
        until = np.cumsum(regular, axis=0)
        spots = []
        for bucket, rank in zip(buckets.tolist(), inner.tolist(), strict=True):
            place = int(slot[bucket])
            start, stop = int(starts[place]), int(stops[place])
            if rank <= stop - start:
                spots.append(_irregular_spot(patterns, owner, stop, rank))
            else:
                spots.append(_regular_spot(bucket << self._shift, until[:, place], rank - (stop - start)))
        return spots

    def _look_up(self, spots: Sequence[_Spot], records: Sequence[Span], look: Look) -> list[MagnitudeCut]:
        positions: dict[_Spot, int] = {}
        inside = sorted({(spot.record, spot.pattern, spot.rank) for spot in spots if spot.record is not None})
        groups = [(n, [_Search(pattern, rank) for _, pattern, rank in group]) for n, group in groupby(inside, _first)]
        spans = [records[n] for n, _ in groups]
        at = 0
        for start, magnitudes in look(spans):
            while start >= spans[at][1]:
                at += 1
            for first, stop in leaf_spans(magnitudes.size):
                patterns = magnitudes[first:stop].view(self._bits)
                for search in groups[at][1]:
                    if search.left > 0:
                        search.advance(start + first, *self._loops.find(patterns, search.pattern, search.left))
        for number, searches in groups:
            positions |= {_Spot(search.pattern, number, search.rank): search.position for search in searches}
        beyond = self._elements - 1
        return [
            _cut(spot.pattern, positions[spot] if spot.record is not None else beyond + spot.rank, self._compute)
            for spot in spots
        ]

    def _descent(self) -> _Descent:
        return _Descent(self._top, self._elements, self._total - self._elements, self._compute, self._working)


@dataclass(frozen=True, slots=True, eq=False)
class _Record:
    """Of the elements in `span`: counts of the patterns' upper 16 bits (of 0, then from `lowest` on), the irregular."""

    span: Span
    zero: int
    lowest: int
    counts: NDArray[Any]
    irregular: Bits

    def counts_of(self, buckets: Counts) -> Counts:
        """The counts of these upper 16 bits."""
        places = buckets - self.lowest
        known = (places >= 0) & (places < self.counts.size)
        result = np.zeros(buckets.size, np.int64)
        result[known] = self.counts[places[known]]
        result[buckets == 0] = self.zero
        return result


@dataclass(frozen=True, slots=True)
class _Spot:
    """A threshold's bit pattern and which of its occurrences the cut is: the `rank`-th (from 1) in `record`.

    Without a record it is the `rank`-th of the zeros that were never fed.
    """

    pattern: int
    record: int | None
    rank: int


def _first(spot: tuple[int, int, int]) -> int:
    return spot[0]


class _Search:
    """The position of a pattern's `rank`-th occurrence, sought in tile after tile."""

    def __init__(self, pattern: int, rank: int) -> None:
        self.pattern, self.rank = pattern, rank
        self.left, self.position = rank, -1

    def advance(self, start: int, place: int, count: int) -> None:
        """In the next tile, which begins at `start`, the pattern was met `count` times, the last sought at `place`."""
        self.left -= count
        if self.left == 0:
            self.position = start + place


def _irregular_spot(patterns: Bits, owner: NDArray[np.int32], stop: int, rank: int) -> _Spot:
    """The `rank`-th largest of the sorted `patterns[:stop]`; equal ones are in the order of their records."""
    pattern = patterns[stop - rank]
    first = int(np.searchsorted(patterns[:stop], pattern, "left"))
    last = int(np.searchsorted(patterns[:stop], pattern, "right"))
    place = first + rank - (stop - last) - 1
    record = int(owner[place])
    return _Spot(int(pattern), record, place - first - int(np.searchsorted(owner[first:last], record, "left")) + 1)


def _regular_spot(pattern: int, until: Counts, rank: int) -> _Spot:
    """The `rank`-th occurrence, `until[r]` of them being in the records up to r."""
    record = int(np.searchsorted(until, rank, "left"))
    before = int(until[record - 1]) if record else 0
    return _Spot(pattern, record if record < until.size else None, rank - before)


class _Descent:
    """Order statistics by repeated looks, a digit further down each time; then one look for the positions."""

    def __init__(self, top: Counts, elements: int, zeros_beyond: int, compute: np.dtype[Any], working: int) -> None:
        self._top, self._elements, self._beyond, self._compute = top, elements, zeros_beyond, compute
        self._bits: np.dtype[Any] = np.dtype(f"u{compute.itemsize}")
        self._width = 8 * compute.itemsize
        self._at_once = working // (2 * _DIGITS * 8)

    def cuts(self, ranks: Sequence[int], look: Look) -> list[MagnitudeCut]:
        buckets, inner = _find(self._top, ranks)
        prefixes: Bits = buckets.astype(self._bits)
        for shift in range(self._width - 16 - _DIGIT_BITS, -1, -_DIGIT_BITS):
            prefixes, inner = self._lower(prefixes, inner, shift, look)
        positions = self._positions(prefixes, inner, look)
        return [
            _cut(pattern, position, self._compute)
            for pattern, position in zip(prefixes.tolist(), positions.tolist(), strict=True)
        ]

    def _lower(self, prefixes: Bits, inner: Counts, shift: int, look: Look) -> tuple[Bits, Counts]:
        """Extend each prefix by the next digit, in which its `inner`-th largest pattern lies."""
        longer, rank = np.zeros_like(prefixes), np.zeros_like(inner)
        distinct = np.unique(prefixes)
        for begin in range(0, distinct.size, self._at_once):
            group = distinct[begin : begin + self._at_once]
            counts = np.zeros((group.size, _DIGITS), np.int64)
            for _, patterns in self._leaves(look):
                chosen, places = self._members(patterns, group, shift + _DIGIT_BITS)
                digits = (patterns[chosen] >> shift).astype(np.int64) & (_DIGITS - 1)
                np.add.at(counts.reshape(-1), places * _DIGITS + digits, 1)
            if group[0] == 0:
                counts[0, 0] += self._beyond
            for place, prefix in enumerate(group.tolist()):
                mine = np.flatnonzero(prefixes == prefix)
                digit, rank[mine] = _find(counts[place], inner[mine].tolist())
                longer[mine] = (prefix << _DIGIT_BITS) + digit.astype(self._bits)
        return longer, rank

    def _positions(self, patterns: Bits, ranks: Counts, look: Look) -> Counts:
        """Where the rank-th occurrence of each pattern is."""
        group, places_of = np.unique(patterns, return_inverse=True)
        positions = np.full(ranks.size, -1, np.int64)
        seen = np.zeros(group.size, np.int64)
        for start, tile in self._leaves(look):
            chosen, places = self._members(tile, group, 0)
            counts = seen + np.bincount(places, minlength=group.size)
            for number in np.flatnonzero((seen[places_of] < ranks) & (ranks <= counts[places_of])).tolist():
                place = places_of[number]
                positions[number] = start + chosen[places == place][ranks[number] - seen[place] - 1]
            seen = counts
            if (ranks <= seen[places_of]).all():
                break
        # What was not met is a zero that was never fed.
        return np.where(positions < 0, self._elements - 1 + ranks - seen[0], positions)

    def _members(self, patterns: Bits, group: Bits, shift: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which patterns have one of the sorted prefixes `group` above `shift`, and which one."""
        wanted = np.zeros(TOP, np.bool_)
        wanted[(group >> (self._width - 16 - shift)).astype(np.int64)] = True
        chosen = np.flatnonzero(wanted.take((patterns >> (self._width - 16)).astype(np.int64)))
        prefixes = patterns[chosen] >> shift
        places = np.minimum(np.searchsorted(group, prefixes), group.size - 1)
        hit = group[places] == prefixes
        return chosen[hit], places[hit]

    def _leaves(self, look: Look) -> Iterator[tuple[int, Bits]]:
        for start, magnitudes in look([(0, self._elements)]):
            for first, stop in leaf_spans(magnitudes.size):
                yield start + first, magnitudes[first:stop].view(self._bits)


def _record_size(elements: int) -> int:
    return LEAF * max(1, math.ceil(elements / (LEAF * _RECORDS)))


def _find(counts: Counts, ranks: Sequence[int]) -> tuple[Counts, Counts]:
    """For each rank (from 1, the largest first) the digit it falls into, and its rank among that digit's."""
    descending = np.cumsum(counts[::-1])
    places = np.searchsorted(descending, np.asarray(ranks, np.int64), "left")
    digits = counts.size - 1 - places
    return digits, np.asarray(ranks, np.int64) - (descending[places] - counts[digits])


def _cut(pattern: int, position: int, compute: np.dtype[Any]) -> MagnitudeCut:
    threshold = float(np.array([pattern], f"u{compute.itemsize}").view(compute)[0])
    if not math.isfinite(threshold):
        return MagnitudeCut(float(np.finfo(compute).max), -1)
    return MagnitudeCut(threshold, position)
