"""Tensor dtypes as safetensors names them; decoding bytes to floats and rounding floats to bytes.

numpy has no bfloat16 and no 8-bit floats; `ml_dtypes` adds them as numpy dtypes whose casts
round to nearest even.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class DType:
    """One storage dtype. `code` is the safetensors name, `itemsize` is in bytes."""

    code: str
    numpy: np.dtype[Any]
    is_float: bool

    @property
    def itemsize(self) -> int:
        return self.numpy.itemsize

    @property
    def compute(self) -> np.dtype[Any]:
        """The dtype arithmetic on such inputs uses: float64 for float64, else float32."""
        return np.dtype(np.float64) if self.code == "F64" else np.dtype(np.float32)

    @property
    def precision(self) -> int:
        """Significand bits including the hidden one (8 for BF16); floats only."""
        return int(ml_dtypes.finfo(self.numpy).nmant) + 1

    @property
    def smallest(self) -> float:
        """The smallest positive subnormal; floats only."""
        return float(ml_dtypes.finfo(self.numpy).smallest_subnormal)

    @property
    def overflow(self) -> float:
        """The magnitude from which on rounding no longer promises a finite number; floats only.

        Halfway between the largest number and the one that would follow it. Infinity for F64, whose
        arithmetic overflows before rounding does.
        """
        if self.code == "F64":
            return math.inf
        largest = float(ml_dtypes.finfo(self.numpy).max)
        last_place: float = 2.0 ** (math.floor(math.log2(largest)) - (self.precision - 1))
        return largest + last_place / 2

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (dtype, (self.code,))


def _entry(code: str, scalar: Any, is_float: bool) -> tuple[str, DType]:
    return code, DType(code, np.dtype(scalar).newbyteorder("=") if is_float else np.dtype(scalar), is_float)


DTYPES: Final[dict[str, DType]] = dict(
    [
        _entry("F64", np.float64, True),
        _entry("F32", np.float32, True),
        _entry("BF16", ml_dtypes.bfloat16, True),
        _entry("F16", np.float16, True),
        _entry("F8_E4M3", ml_dtypes.float8_e4m3fn, True),
        _entry("F8_E5M2", ml_dtypes.float8_e5m2, True),
        _entry("I64", np.int64, False),
        _entry("I32", np.int32, False),
        _entry("I16", np.int16, False),
        _entry("I8", np.int8, False),
        _entry("U64", np.uint64, False),
        _entry("U32", np.uint32, False),
        _entry("U16", np.uint16, False),
        _entry("U8", np.uint8, False),
        _entry("BOOL", np.bool_, False),
    ]
)

# The names recipes and config.json use, as torch spells them.
TORCH_NAMES: Final[dict[str, str]] = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "bfloat16": "BF16",
    "float16": "F16", "half": "F16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_TORCH_SPELLING: Final[dict[str, str]] = {
    "F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip

# numpy rounds float64 to these at once.
_FROM_FLOAT64: Final = frozenset(["F64", "F32", "F16"])


def dtype(code: str) -> DType:
    """The `DType` with this safetensors code; `KeyError` if there is none."""
    return DTYPES[code]


def torch_name(code: str) -> str:
    """`"BF16"` → `"bfloat16"`, as config.json's `dtype` spells it."""
    return _TORCH_SPELLING[code]


def decode(raw: NDArray[np.uint8], source: DType, out: FloatArray) -> FloatArray:
    """Stored bytes → floats, exactly, into `out` (float32 or float64, `raw.size / itemsize` elements)."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        np.copyto(out, raw.view(source.numpy), casting="unsafe")
    return out


def encode(values: FloatArray, target: DType, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Floats → stored bytes, one rounding to nearest even, into `out` (`values.size * itemsize` bytes)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if values.dtype == np.float64 and target.code not in _FROM_FLOAT64:
            values = _to_odd(values)
        np.copyto(out.view(target.numpy), values, casting="unsafe")
    return out


def _to_odd(values: FloatArray) -> FloatArray:
    """float64 → float32, inexact values to the neighbour whose last bit is 1.

    A second rounding, to fewer than 23 significand bits, then gives what one rounding would (Boldo and
    Melquiond, "When double rounding is odd", 2005); ml_dtypes converts float64 by way of float32.
    """
    near = values.astype(np.float32)
    back = near.astype(np.float64)
    inexact = (back != values) & ~np.isnan(values)
    bits = near.view(np.int32)
    bits -= inexact & (np.abs(back) > np.abs(values))  # towards zero
    bits |= inexact
    return near
