"""The compiled kernels' loops, over strips of a tile that stay in the first-level cache.

numba compiles without contraction of multiply and add and without reordering (`fastmath` is off), and every element
goes through the operations of the array loops in their order, so that the bits are the same. Where those multiply by a
mask of zeros and ones, these choose: the difference is the sign of a zero, which `subtract_from_base` takes away, or
what is not finite, which is left to the array loops. Integers are cast at every step, for numba widens them, and then
half as many fit a register; where it does not know an index to be unsigned, it looks for negative ones.

All in one file: machine code is cached beside it, or in the user's cache, and is made anew when this file changes, not
when another does whose functions it has taken in.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

BF16: Final = 0
F16: Final = 1
F32: Final = 2
# What is kept of a term.
OUTER: Final = 1
INNER: Final = 2
RANDOM: Final = 4
RANKED: Final = 8
# Nothing: the term has no part in the merge, whatever it holds.
SILENT: Final = 16

# One expert: the address of its bytes (0: not read), their kind, and what its part and weight are. Kept are elements
# above `outer`, and those that are not above `inner`; of elements up to `*_cut` those that equal it count as above.
# Each element has 16 random bits, by the key `key_low`, `key_high`. Kept at random are those whose bits are below
# `lanes`; by rank, those whose bits are below `lanes`, or below `beyond` if their rank is at least what `need`, an
# address, has for the bits.
TERM: Final = np.dtype(
    [
        ("raw", np.int64),
        ("key_low", np.uint64),
        ("key_high", np.uint64),
        ("need", np.int64),
        ("outer_cut", np.int64),
        ("inner_cut", np.int64),
        ("kind", np.int32),
        ("part", np.int32),
        ("lanes", np.int32),
        ("beyond", np.int32),
        ("outer", np.float32),
        ("inner", np.float32),
        ("factor", np.float32),
        ("weight", np.float32),
    ],
    align=True,
)
# Of all terms together: stored kinds of base and output, elements of a strip and of a row, and the rule. Of the
# positions whose variance is above `selected`, or equal to it up to `selected_cut`, votes count.
RULE: Final = np.dtype(
    [
        ("strip", np.int64),
        ("row", np.int64),
        ("selected_cut", np.int64),
        ("base_kind", np.int32),
        ("out_kind", np.int32),
        ("normalize", np.int32),
        ("selects", np.int32),
        ("divisor", np.float32),
        ("scale", np.float32),
        ("base", np.float32),
        ("selected", np.float32),
    ],
    align=True,
)

# Elements a step gives, and words.
LANES: Final = 16
_WORDS: Final = 4
_ROUNDS: Final = 10
_MULTIPLIERS: Final = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_BUMPS: Final = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
# A bucket's number is a pattern's upper 11 bits without the sign: eight to a power of two.
_SHIFT: Final = np.uint32(20)
_BUCKETS: Final = 1 << 11
# So many ranks are counted out, pattern by pattern, before sorting the row is quicker.
_COUNTED: Final = 96
_DIGIT: Final = 1 << 11
_NEXT: Final = np.uint32(1)

_SIGN: Final = np.uint32(0x8000_0000)
_SIZE: Final = np.uint32(0x7FFF_FFFF)
_ZERO: Final = np.float32(0.0)
_ONE: Final = np.float32(1.0)
_NONFINITE: Final = np.uint32(0x7F80_0000)
_PLUS_ONE: Final = np.uint32(0x3F80_0000)


def _to_pointer(_context: Any, address: Any) -> Any:
    """An address as a pointer, which `numba.carray` makes an array of."""

    def generate(_codegen: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


_pointer: Any = intrinsic(_to_pointer)


@numba.njit(nogil=True, cache=True)
def all_below(patterns: Any, mask: Any, limit: Any) -> Any:
    """Whether all patterns are, under the mask, below the limit."""
    beyond = False
    for n in range(patterns.size):
        beyond |= (patterns[n] & mask) >= limit
    return not beyond


@numba.njit(nogil=True, cache=True)
def _load(address: Any, kind: Any, first: Any, values: Any, bits: Any) -> Any:
    """Decode the elements from `first` on into `values`, whose memory is `bits`."""
    count = values.size
    if kind == BF16:
        short = numba.carray(_pointer(address + 2 * first), count, np.uint16)
        for n in range(count):
            bits[n] = np.uint32(short[n]) << np.uint32(16)
    elif kind == F32:
        whole = numba.carray(_pointer(address + 4 * first), count, np.uint32)
        for n in range(count):
            bits[n] = whole[n]
    else:
        half = numba.carray(_pointer(address + 2 * first), count, np.uint16)
        for n in range(count):
            size = np.uint32(half[n] & np.uint16(0x7FFF))
            # What is not finite has the largest exponent there too.
            rebias = np.uint32(224 << 23) if size >= np.uint32(0x7C00) else np.uint32(112 << 23)
            bits[n] = np.uint32(np.uint32(size << np.uint32(13)) + rebias)
        for n in range(count):
            size = half[n] & np.uint16(0x7FFF)
            small = np.float32(np.int32(size)) * np.float32(2.0**-24)
            values[n] = small if size < np.uint16(0x0400) else values[n]
        for n in range(count):
            bits[n] |= np.uint32(np.uint32(half[n] & np.uint16(0x8000)) << np.uint32(16))


@numba.njit(nogil=True, cache=True)
def _largest(bits: Any) -> Any:
    """The largest pattern but for its sign: above that of infinity where there is a NaN."""
    largest = np.uint32(0)
    for n in range(bits.size):
        pattern = np.uint32(bits[n] & _SIZE)
        if pattern > largest:
            largest = pattern
    return largest


@numba.njit(nogil=True, cache=True)
def _cut(values: Any, threshold: Any, ties: Any, above: Any) -> None:
    """Zero what is not `above` the threshold in magnitude, or what is; of the first `ties` equal ones are above."""
    equal, others = values[:ties], values[ties:]
    if above:
        for n in range(equal.size):
            equal[n] = equal[n] if abs(equal[n]) >= threshold else _ZERO
        for n in range(others.size):
            others[n] = others[n] if abs(others[n]) > threshold else _ZERO
    else:
        for n in range(equal.size):
            equal[n] = _ZERO if abs(equal[n]) >= threshold else equal[n]
        for n in range(others.size):
            others[n] = _ZERO if abs(others[n]) > threshold else others[n]


@numba.njit(nogil=True, cache=True)
def _vote(term: Any, row: Any, start: Any, first: Any, base: Any, values: Any, bits: Any, room: Any) -> Any:
    """`wᵢxᵢ` of a strip into `values`, and the largest pattern of δᵢ."""
    ranking, drawn = room
    largest = _difference(term, first, base, values, bits)
    if term.part & OUTER:
        _cut(values, term.outer, min(max(term.outer_cut + 1 - start - first, 0), values.size), True)
    if term.part & INNER:
        _cut(values, term.inner, min(max(term.inner_cut + 1 - start - first, 0), values.size), False)
    if term.part & RANDOM:
        uniform = draw(term.key_low, term.key_high, start + first, values.size, drawn)
        for n in range(values.size):
            values[n] = values[n] if np.int32(uniform[n]) < term.lanes else _ZERO
    if term.part & RANKED:
        uniform = draw(term.key_low, term.key_high, start + first, values.size, drawn)
        need = numba.carray(_pointer(term.need), term.beyond - term.lanes, np.int32)
        for begin in range(0, values.size, row):
            end = begin + row
            drop_by_rank(values[begin:end], uniform[begin:end], term.lanes, term.beyond, need, ranking)
    factor, weight = term.factor, term.weight
    for n in range(values.size):
        values[n] = values[n] * factor * weight
    return largest


@numba.njit(nogil=True, cache=True)
def _difference(term: Any, first: Any, base: Any, values: Any, bits: Any) -> Any:
    """`δᵢ` of a strip into `values`, and its largest pattern."""
    _load(term.raw, term.kind, first, values, bits)
    for n in range(values.size):
        values[n] -= base[n]
    return _largest(bits)


@numba.njit(nogil=True, cache=True)
def _store(values: Any, bits: Any, address: Any, kind: Any, first: Any) -> Any:
    """Round to the output's kind, to nearest even, all finite; returns the largest pattern before."""
    count = values.size
    largest = _largest(bits)
    if largest >= _NONFINITE:
        return largest
    if kind == BF16:
        short = numba.carray(_pointer(address + 2 * first), count, np.uint16)
        for n in range(count):
            odd = np.uint32(np.uint32(bits[n] >> np.uint32(16)) & np.uint32(1))
            short[n] = np.uint16(np.uint32(np.uint32(bits[n] + np.uint32(0x7FFF)) + odd) >> np.uint32(16))
    elif kind == F32:
        whole = numba.carray(_pointer(address + 4 * first), count, np.uint32)
        for n in range(count):
            whole[n] = bits[n]
    else:
        half = numba.carray(_pointer(address + 2 * first), count, np.uint16)
        for n in range(count):
            pattern = np.uint32(bits[n] & _SIZE)
            odd = np.uint32(np.uint32(pattern >> np.uint32(13)) & np.uint32(1))
            rounded = np.uint32(np.uint32(pattern + np.uint32(0xFFF)) + odd)
            normal = np.uint32(np.uint32(rounded - np.uint32(112 << 23)) >> np.uint32(13))
            # Below the smallest normal number: to a whole number of its last places.
            size = abs(values[n])
            shifted = np.float32(size + np.float32(0.5)) - np.float32(0.5)
            small = np.uint32(np.int32(shifted * np.float32(2.0**24)))
            chosen = small if size < np.float32(2.0**-14) else normal
            half[n] = np.uint16(chosen | np.uint32(np.uint32(bits[n] & _SIGN) >> np.uint32(16)))
    return largest


@numba.njit(nogil=True, cache=True)
def _subtract(base: Any, factor: Any, negated: Any) -> None:
    """See `mergepipe.operators.additive.subtract_from_base`."""
    if factor != _ONE:
        for n in range(base.size):
            negated[n] = base[n] * factor - (negated[n] + _ZERO)
    else:
        for n in range(base.size):
            negated[n] = base[n] - (negated[n] + _ZERO)


@numba.njit(nogil=True, cache=True)
def mix(start: Any, count: Any, base_address: Any, terms: Any, rule: Any, out: Any) -> Any:
    """The largest patterns of any δᵢ and of the result, before rounding."""
    strips = np.empty((3, rule.strip), np.float32)
    patterns = strips.view(np.uint32)
    room = ranking_room(rule.row), drawing_room(rule.strip)
    delta, result = np.uint32(0), np.uint32(0)
    for first in range(0, count, rule.strip):
        size = min(rule.strip, count - first)
        base, total, vote = strips[0, :size], strips[1, :size], strips[2, :size]
        _load(base_address, rule.base_kind, first, base, patterns[0, :size])
        total[:] = _ZERO
        for k in range(terms.size):
            if terms[k].raw == 0:
                continue
            delta = max(delta, _vote(terms[k], rule.row, start, first, base, vote, patterns[2, :size], room))
            for n in range(size):
                total[n] += vote[n]
        if rule.divisor != _ONE:
            for n in range(size):
                total[n] /= rule.divisor
        if rule.scale != _ONE:
            for n in range(size):
                total[n] *= rule.scale
        _subtract(base, rule.base, total)
        result = max(result, _store(total, patterns[1, :size], out, rule.out_kind, first))
    return delta, result


@numba.njit(nogil=True, cache=True)
def _take_sides(bits: Any) -> None:
    """From the bits of each sum of votes those of ±1, by its sign."""
    for n in range(bits.size):
        bits[n] = np.uint32(bits[n] & _SIGN) | _PLUS_ONE


@numba.njit(nogil=True, cache=True)
def _count_vote(vote: Any, side: Any, factor: Any, weight: Any, total: Any, divisor: Any) -> None:
    """Add a vote's size × `factor` to the total and its weight to the divisor where it has the elected sign, ±1."""
    for n in range(vote.size):
        size = vote[n] * side[n]
        total[n] += size * factor if size > _ZERO else _ZERO
        divisor[n] += weight if size > _ZERO else _ZERO


@numba.njit(nogil=True, cache=True)
def elect(start: Any, count: Any, base_address: Any, terms: Any, rule: Any, out: Any) -> Any:
    """A sign election; returns as `mix` does."""
    strips = np.empty((4 + terms.size, rule.strip), np.float32)
    patterns = strips.view(np.uint32)
    room = ranking_room(rule.row), drawing_room(rule.strip)
    delta, result = np.uint32(0), np.uint32(0)
    for first in range(0, count, rule.strip):
        size = min(rule.strip, count - first)
        base, total, divisor, ballot = strips[0, :size], strips[1, :size], strips[2, :size], strips[3, :size]
        _load(base_address, rule.base_kind, first, base, patterns[0, :size])
        ballot[:] = _ZERO
        for k in range(terms.size):
            if terms[k].raw == 0:
                continue
            vote, bits = strips[4 + k, :size], patterns[4 + k, :size]
            delta = max(delta, _vote(terms[k], rule.row, start, first, base, vote, bits, room))
            for n in range(size):
                ballot[n] += vote[n]
        _take_sides(patterns[3, :size])
        total[:] = _ZERO
        divisor[:] = _ZERO
        for k in range(terms.size):
            if terms[k].raw != 0:
                _count_vote(strips[4 + k, :size], ballot, _ONE, terms[k].weight, total, divisor)
        if rule.normalize:
            for n in range(size):
                total[n] /= divisor[n] if divisor[n] != _ZERO else _ONE
        for n in range(size):
            total[n] = total[n] * ballot[n] * rule.scale
        _subtract(base, _ONE, total)
        result = max(result, _store(total, patterns[1, :size], out, rule.out_kind, first))
    return delta, result


@numba.njit(nogil=True, cache=True)
def select_and_elect(start: Any, count: Any, base_address: Any, terms: Any, rule: Any, out: Any) -> Any:
    """SCE: unweighted votes where the experts vary most, weighed once they are elected; returns as `mix` does."""
    strips = np.empty((4 + terms.size, rule.strip), np.float32)
    patterns = strips.view(np.uint32)
    delta, result = np.uint32(0), np.uint32(0)
    for first in range(0, count, rule.strip):
        size = min(rule.strip, count - first)
        base, total, divisor, ballot = strips[0, :size], strips[1, :size], strips[2, :size], strips[3, :size]
        _load(base_address, rule.base_kind, first, base, patterns[0, :size])
        ballot[:] = _ZERO
        for k in range(terms.size):
            if terms[k].raw != 0:
                vote = strips[4 + k, :size]
                delta = max(delta, _difference(terms[k], first, base, vote, patterns[4 + k, :size]))
                for n in range(size):
                    ballot[n] += vote[n]
        if rule.selects:
            _vary(terms, strips[4:, :size], ballot, total, divisor)
            ties = min(max(rule.selected_cut + 1 - start - first, 0), size)
            _silence(terms, strips[4:, :size], divisor, rule.selected, ties)
        _take_sides(patterns[3, :size])
        total[:] = _ZERO
        divisor[:] = _ZERO
        for k in range(terms.size):
            if terms[k].raw != 0:
                _count_vote(strips[4 + k, :size], ballot, terms[k].weight, terms[k].weight, total, divisor)
        for n in range(size):
            total[n] /= divisor[n] if divisor[n] > rule.divisor else rule.divisor
        for n in range(size):
            total[n] = total[n] * ballot[n] * rule.scale
        _subtract(base, _ONE, total)
        result = max(result, _store(total, patterns[1, :size], out, rule.out_kind, first))
    return delta, result


@numba.njit(nogil=True, cache=True)
def _vary(terms: Any, votes: Any, total: Any, mean: Any, variance: Any) -> None:
    """The variance of the votes, whose sum is `total`; those not read are zeros. `mean` receives their mean."""
    count = np.float32(terms.size)
    for n in range(mean.size):
        mean[n] = total[n] / count
    variance[:] = _ZERO
    for k in range(terms.size):
        if terms[k].raw != 0:
            vote = votes[k]
            for n in range(mean.size):
                difference = vote[n] - mean[n]
                variance[n] += difference * difference
        else:
            for n in range(mean.size):
                variance[n] += mean[n] * mean[n]
    for n in range(mean.size):
        variance[n] /= count


@numba.njit(nogil=True, cache=True)
def _silence(terms: Any, votes: Any, variance: Any, threshold: Any, ties: Any) -> None:
    """Zero the votes where the variance is not above the threshold; of the first `ties` equal ones are above."""
    for n in range(ties):
        variance[n] = _ONE if variance[n] >= threshold else _ZERO
    for n in range(ties, variance.size):
        variance[n] = _ONE if variance[n] > threshold else _ZERO
    for k in range(terms.size):
        if terms[k].raw != 0:
            vote = votes[k]
            for n in range(variance.size):
                vote[n] *= variance[n]


# --- randomness -----------------------------------------------------------------------------------

# Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), as numpy counts: the words of
# step n are those of counter n + 1. Steps do not depend on each other, so the processor overlaps them, as it cannot
# in a generator that draws one after another.


def _to_halves(_context: Any, left: Any, right: Any) -> Any:
    """The upper and the lower 64 bits of a product of two uint64."""
    halves = types.UniTuple(types.uint64, 2)

    def generate(_codegen: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        whole, half = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(each, whole) for each in arguments))
        upper = builder.trunc(builder.lshr(product, whole(64)), half)
        return cgutils.pack_array(builder, [upper, builder.trunc(product, half)])

    return halves(left, right), generate


_halves: Any = intrinsic(_to_halves)


@numba.njit(nogil=True, cache=True)
def drawing_room(strip: Any) -> Any:
    """Memory for `draw` of up to `strip` elements."""
    return np.empty((strip // LANES + 2) * _WORDS, np.uint64)


@numba.njit(nogil=True, cache=True)
def draw(low: Any, high: Any, start: Any, count: Any, room: Any) -> Any:
    """`count` uniform 16-bit integers for the elements from `start` on, by the key of these two halves."""
    first = start // LANES
    steps = (start + count - 1) // LANES + 1 - first
    for step in range(steps):
        zero, one, two, three = np.uint64(first + step + 1), np.uint64(0), np.uint64(0), np.uint64(0)
        mine, other = low, high
        for _ in range(_ROUNDS):
            upper, lower = _halves(_MULTIPLIERS[0], zero)
            above, below = _halves(_MULTIPLIERS[1], two)
            zero, one, two, three = above ^ one ^ mine, below, upper ^ three ^ other, lower
            mine += _BUMPS[0]
            other += _BUMPS[1]
        place = _WORDS * step
        room[place] = zero
        room[place + 1] = one
        room[place + 2] = two
        room[place + 3] = three
    skipped = start - first * LANES
    return room.view(np.uint16)[skipped : skipped + count]


# --- ranks ----------------------------------------------------------------------------------------

# An entry is kept if its rank in the row is at least what its random bits ask for. Where its bits decide for every
# rank, or its bucket of the histogram lies on one side of that rank, no rank is needed. Of the rest, a few in a
# hundred, each is counted out, or, where they are many (few distinct magnitudes), the row is sorted.


@numba.njit(nogil=True, cache=True)
def ranking_room(row: Any) -> Any:
    """Memory for `drop_by_rank` of rows of `row` elements: patterns, flags and numbers of elements; counts."""
    return np.empty((7, max(row, 1)), np.int32), np.zeros((2, _BUCKETS), np.int32), np.empty(_BUCKETS + 1, np.int32)


@numba.njit(nogil=True, cache=True)
def drop_by_rank(values: Any, uniform: Any, first: Any, beyond: Any, need: Any, room: Any) -> None:
    """Zero in a row what `mergepipe.core.random.ranked_keep_mask` does not keep; ±0 stays one of them.

    Of `uniform` bits below `first` every rank is kept, from `beyond` on none, and between them ranks from
    `need[bits − first]` on. All values are finite.
    """
    memory, counts, below = room
    sizes, flags = memory[0, : values.size], memory[1, : values.size]
    bits = values.view(np.int32)
    for n in range(values.size):
        sizes[n] = bits[n] & np.int32(0x7FFF_FFFF)
    _bucket(sizes, counts, below)
    undecided = _mark(uniform, first, beyond, flags, memory[2])
    for n in range(values.size):
        values[n] = values[n] if np.int32(uniform[n]) < beyond else _ZERO
    marked, hard, left = memory[2], memory[3], 0
    for m in range(undecided):
        n = marked[m]
        rank = need[np.uint32(np.int32(uniform[n]) - first)]
        bucket = np.uint32(sizes[n]) >> _SHIFT
        begin, end = below[bucket], below[bucket + _NEXT]
        hard[left] = n
        left += (rank > begin) & (rank < end) & (sizes[n] != 0)
        values[n] = values[n] if rank < end else _ZERO
    ranks = memory[4, : values.size]
    if left > _COUNTED:
        _sort(sizes, memory[5, : values.size], memory[6, : values.size], ranks)
    else:
        for m in range(left):
            ranks[hard[m]] = _rank(sizes[: hard[m]], sizes[hard[m] + 1 :], sizes[hard[m]])
    for m in range(left):
        n = hard[m]
        if ranks[n] < need[np.int32(uniform[n]) - first]:
            values[n] = _ZERO


@numba.njit(nogil=True, cache=True)
def _mark(uniform: Any, first: Any, beyond: Any, flags: Any, marked: Any) -> Any:
    """The numbers of the elements whose bits are between the limits into `marked`; how many they are."""
    # As unsigned numbers, those below `first` come out as large ones.
    span = np.uint32(beyond - first)
    for n in range(flags.size):
        flags[n] = np.uint32(np.int32(uniform[n]) - first) < span
    found = 0
    for n in range(flags.size):
        marked[found] = n
        found += flags[n]
    return found


@numba.njit(nogil=True, cache=True)
def _bucket(sizes: Any, counts: Any, below: Any) -> None:
    """`below[b]` = how many patterns lie in buckets under b, for each b that holds any and the one after it."""
    most = np.int32(0)
    for n in range(sizes.size):
        most = sizes[n] if sizes[n] > most else most
    # Of those that are not zero, which lie far below: less one, zero is the largest number.
    least = np.uint32(0xFFFF_FFFF)
    for n in range(sizes.size):
        size = np.uint32(np.uint32(sizes[n]) - _NEXT)
        least = size if size < least else least
    # Two tables in turn: to count twice in the same place, the first count must have been stored.
    even, odd = counts[0], counts[1]
    for n in range(0, sizes.size - 1, 2):
        even[np.uint32(sizes[n]) >> _SHIFT] += np.int32(1)
        odd[np.uint32(sizes[n + 1]) >> _SHIFT] += np.int32(1)
    if sizes.size % 2:
        even[np.uint32(sizes[sizes.size - 1]) >> _SHIFT] += np.int32(1)
    seen = _close(even, odd, below, np.uint32(0), np.int32(0))
    lowest, last = np.uint32(np.uint32(least + _NEXT) >> _SHIFT), np.uint32(np.uint32(most) >> _SHIFT)
    bucket = lowest if lowest != 0 else _NEXT
    while bucket <= last:
        seen = _close(even, odd, below, bucket, seen)
        bucket = np.uint32(bucket + _NEXT)


@numba.njit(nogil=True, cache=True)
def _close(even: Any, odd: Any, below: Any, bucket: Any, seen: Any) -> Any:
    """Set where a bucket begins and ends, and clear its counts; returns where it ends."""
    below[bucket] = seen
    end = np.int32(seen + even[bucket] + odd[bucket])
    below[bucket + _NEXT] = end
    even[bucket] = 0
    odd[bucket] = 0
    return end


@numba.njit(nogil=True, cache=True)
def _rank(before: Any, after: Any, mine: Any) -> Any:
    """How many patterns are smaller than `mine`, or equal to it and before it."""
    rank = np.int32(0)
    for n in range(before.size):
        rank = np.int32(rank + np.int32(before[n] <= mine))
    for n in range(after.size):
        rank = np.int32(rank + np.int32(after[n] < mine))
    return rank


@numba.njit(nogil=True, cache=True)
def _sort(sizes: Any, order: Any, spare: Any, ranks: Any) -> None:
    """The rank of every pattern, of equal ones the earlier first, by sorting digit after digit from the last."""
    starts = np.empty(_DIGIT, np.int32)
    for n in range(sizes.size):
        order[n] = n
    for shift in (0, 11, 22):
        starts[:] = 0
        for n in range(sizes.size):
            starts[(sizes[n] >> shift) & (_DIGIT - 1)] += 1
        seen = 0
        for digit in range(_DIGIT):
            count = starts[digit]
            starts[digit] = seen
            seen += count
        for n in range(sizes.size):
            place = order[n]
            digit = (sizes[place] >> shift) & (_DIGIT - 1)
            spare[starts[digit]] = place
            starts[digit] += 1
        order[:] = spare
    for n in range(sizes.size):
        ranks[order[n]] = n
