"""exp and log whose bits are the same on every machine: additions, multiplications and divisions in a fixed order.

The C library's and numpy's own choose other instructions, and so other last bits, on other processors.
Errors are a few units in the last place of float64 (a test compares with mpmath).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

# ln 2 in two parts: the first has so few bits that its multiples up to 2^11 are exact.
_LN2_HIGH: Final = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
# Below it exp is 0, which differs by less than the smallest normal number.
_SMALLEST: Final = -708.0
_LARGEST: Final = 709.0
# exp's Taylor terms for |r| ≤ ½ ln 2; log's for |s| ≤ 3 − 2√2.
_EXP_TERMS: Final = 14
_LOG_TERMS: Final = 12


def portable_exp(values: Wide) -> Wide:
    """eˣ of finite numbers up to 709, else infinity: 2ᵏ · Taylor(r) with x = k ln 2 + r, |r| ≤ ½ ln 2."""
    clipped = np.clip(values, _SMALLEST, _LARGEST)
    power = np.rint(clipped * (1.0 / math.log(2.0)))
    rest = (clipped - power * _LN2_HIGH) - power * _LN2_LOW
    series = np.full_like(rest, 1.0 / math.factorial(_EXP_TERMS))
    for term in range(_EXP_TERMS - 1, -1, -1):
        series = series * rest
        series = series + 1.0 / math.factorial(term)
    result: Wide = np.ldexp(series, power.astype(np.int32))
    result[values < _SMALLEST] = 0.0
    result[values > _LARGEST] = np.inf
    return result


def portable_log(values: Wide) -> Wide:
    """Natural logarithm of finite positive numbers: k ln 2 + 2 artanh((m − 1)/(m + 1)), x = 2ᵏ m, ½√2 ≤ m < √2."""
    mantissa, power = np.frexp(values)
    low = mantissa < math.sqrt(0.5)
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = (power - low).astype(np.float64)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(ratio, 1.0 / (2 * _LOG_TERMS + 1))
    for term in range(_LOG_TERMS - 1, -1, -1):
        series = series * square
        series = series + 1.0 / (2 * term + 1)
    result: Wide = exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2.0 * ratio * series)
    return result
