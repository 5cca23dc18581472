"""The compiled kernels' loops, over strips of a tile that stay in the first-level cache.

numba compiles without contraction of multiply and add and without reordering (`fastmath` is off), and every element
goes through the operations of the array loops in their order, so that the bits are the same. Where those multiply by a
mask of zeros and ones, these choose: the difference is the sign of a zero, which `subtract_from_base` takes away, or
what is not finite, which is left to the array loops. Integers are cast at every step, for numba widens them, and then
half as many fit a register. Machine code is cached beside this file, or in the user's cache.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from mergepipe.operators.strip_ranks import drop_by_rank, ranking_room

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
# `uniform` is the address of 16 random bits an element. Kept at random are those whose bits are below `lanes`; by
# rank, those whose bits are below `lanes`, or below `beyond` if their rank is at least what `need` has for the bits.
TERM: Final = np.dtype(
    [
        ("raw", np.int64),
        ("uniform", np.int64),
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
    largest = _difference(term, first, base, values, bits)
    if term.part & OUTER:
        _cut(values, term.outer, min(max(term.outer_cut + 1 - start - first, 0), values.size), True)
    if term.part & INNER:
        _cut(values, term.inner, min(max(term.inner_cut + 1 - start - first, 0), values.size), False)
    if term.part & RANDOM:
        uniform = numba.carray(_pointer(term.uniform + 2 * first), values.size, np.uint16)
        lanes = np.uint32(term.lanes)
        for n in range(values.size):
            values[n] = values[n] if np.uint32(uniform[n]) < lanes else _ZERO
    if term.part & RANKED:
        uniform = numba.carray(_pointer(term.uniform + 2 * first), values.size, np.uint16)
        need = numba.carray(_pointer(term.need), term.beyond - term.lanes, np.int32)
        for begin in range(0, values.size, row):
            drop_by_rank(values[begin : begin + row], uniform[begin : begin + row], term.lanes, term.beyond, need, room)
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
    room = ranking_room(rule.row)
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
    room = ranking_room(rule.row)
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
