"""The kernels: an operator's coefficients as records, which the compiled loops of `mergepipe.operators.strips` take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import DType
from mergepipe.core.random import lanes_by_rank
from mergepipe.operators import strips
from mergepipe.operators.additive import Mixture
from mergepipe.operators.consensus import Election
from mergepipe.operators.formula import Formula, Part
from mergepipe.operators.kernel import Kernel, Raw
from mergepipe.operators.sce import LEAST_DIVISOR, SceCoefficients
from mergepipe.operators.sparsify import Band, Drop, RankedDrop, Trim

# Elements of a strip: with four experts, eight arrays of it fill two thirds of a first-level cache.
STRIP: Final = 1024

_KINDS: Final = {"BF16": strips.BF16, "F16": strips.F16, "F32": strips.F32}
# Sums of products below this stay finite in float32, with room for every rounding.
_SAFE: Final = 2.0**126
_WORD: Final = (1 << 64) - 1


def kernel_for(coefficients: Any, base: DType, experts: Sequence[DType], out: DType) -> Kernel | None:
    """See `mergepipe.operators.kernel.kernel_for`."""
    if not {base.code, out.code, *(each.code for each in experts)} <= {*_KINDS}:
        return None
    kernel = _StripKernel(base, experts, out)
    if isinstance(coefficients, SceCoefficients):
        kernel.select(coefficients)
    elif not isinstance(coefficients, Formula):
        return None
    elif isinstance(coefficients.rule, Mixture):
        kernel.mix(coefficients.rule, coefficients.parts)
    else:
        kernel.elect(coefficients.rule, coefficients.parts)
    return kernel


class _StripKernel:
    """The merge of one tensor: its terms and its rule as records, which a call completes by addresses."""

    def __init__(self, base: DType, experts: Sequence[DType], out: DType) -> None:
        self._base = base
        self._terms = np.zeros(len(experts), strips.TERM)
        self._terms["kind"] = [_KINDS[each.code] for each in experts]
        self._terms["factor"] = 1.0
        self._rule = np.zeros((), strips.RULE)
        self._rule["strip"], self._rule["base"] = STRIP, 1.0
        self._rule["base_kind"], self._rule["out_kind"] = _KINDS[base.code], _KINDS[out.code]
        self._overflow = _pattern(out.overflow)
        self._loop: Any = strips.elect
        self._needed: list[NDArray[np.int32]] = []

    def mix(self, mixture: Mixture, parts: Sequence[Part | None]) -> None:
        """Become the kernel of a mixture, whose sums are kept negated."""
        self._loop = strips.mix
        self._rule["divisor"], self._rule["scale"], self._rule["base"] = mixture.divisor, mixture.scale, mixture.base
        self._describe([-weight for weight in mixture.weights], parts)

    def elect(self, election: Election, parts: Sequence[Part | None]) -> None:
        """Become the kernel of a sign election."""
        self._rule["scale"], self._rule["normalize"] = -election.scale, election.normalize
        self._describe(election.weights, parts)

    def select(self, coefficients: SceCoefficients) -> None:
        """Become the kernel of SCE, whose votes are task vectors, and whose weights come after the election."""
        self._loop = strips.select_and_elect
        self._rule["divisor"], self._rule["scale"] = LEAST_DIVISOR, -1.0
        if coefficients.selection is not None:
            self._rule["selects"] = 1
            self._rule["selected"] = coefficients.selection.threshold
            self._rule["selected_cut"] = coefficients.selection.cut
        self._describe(coefficients.weights, (None,) * len(coefficients.weights))
        # All elect, whatever their weights.
        self._terms["part"] = strips.SILENT if coefficients.empty else 0

    def _describe(self, weights: Sequence[float], parts: Sequence[Part | None]) -> None:
        self._terms["weight"] = weights
        largest = 1.0
        for term, weight, part in zip(self._terms, weights, parts, strict=True):
            factor = 1.0 if part is None else part.factor
            largest = max(largest, abs(factor), abs(weight), abs(factor * weight))
            if isinstance(part, Band):
                _describe_band(part, term)
            elif isinstance(part, Drop):
                _describe_drop(part, term)
            elif isinstance(part, RankedDrop):
                self._describe_ranked(part, term)
            if weight == 0.0:
                term["part"] = strips.SILENT
            if isinstance(part, Drop | RankedDrop):
                term["key_low"], term["key_high"] = part.key & _WORD, part.key >> 64
            term["factor"] = factor
        self._safe = _pattern(_SAFE / (largest * (len(weights) + 1)))

    def _describe_ranked(self, part: RankedDrop, term: Any) -> None:
        self._rule["row"] = part.row
        self._rule["strip"] = max(STRIP // part.row, 1) * part.row
        first, beyond, need = _needed_ranks(part.row, part.density, part.epsilon)
        self._needed.append(need)
        term["part"], term["lanes"], term["beyond"], term["need"] = strips.RANKED, first, beyond, _address(need)

    def merge(self, start: int, base: Raw, experts: Sequence[Raw | None], out: Raw) -> bool:
        """See `Kernel.merge`."""
        terms = self._terms.copy()
        count = base.size // self._base.itemsize
        for term, raw in zip(terms, experts, strict=True):
            if raw is not None and not term["part"] & strips.SILENT:
                term["raw"] = _address(raw)
        delta, result = self._loop(start, count, _address(base), terms, self._rule[()], _address(out))
        return bool(delta < self._safe and result < self._overflow)

    def is_finite(self, base: Raw) -> bool:
        """See `Kernel.is_finite`."""
        if self._base.itemsize == 4:
            return bool(strips.all_below(base.view(np.uint32), np.uint32(0x7FFF_FFFF), np.uint32(0x7F80_0000)))
        exponent = np.uint16(0x7F80 if self._base.code == "BF16" else 0x7C00)
        return bool(strips.all_below(base.view(np.uint16), np.uint16(0x7FFF), exponent))


def _describe_band(part: Band, term: Any) -> None:
    for flag, name, trim in ((strips.OUTER, "outer", part.outer), (strips.INNER, "inner", part.inner)):
        if isinstance(trim, Trim):
            term["part"] |= flag
            term[name], term[f"{name}_cut"] = trim.threshold, trim.cut


def _describe_drop(part: Drop, term: Any) -> None:
    lanes = round(part.density * 65536)
    if lanes < 65536:
        term["part"], term["lanes"] = strips.RANDOM, lanes


@lru_cache(maxsize=64)
def _needed_ranks(row: int, density: float, epsilon: float) -> tuple[int, int, NDArray[np.int32]]:
    """`first`, `beyond` and `need`.

    Of 16 random bits below `first` every rank is kept, from `beyond` on none, between them ranks from
    `need[bits − first]` on.
    """
    lanes = lanes_by_rank(row, density, epsilon)
    first, beyond = int(lanes[0]), int(lanes[-1])
    need = np.searchsorted(lanes, np.arange(first, max(beyond, first + 1)), side="right").astype(np.int32)
    return first, beyond, need


def _pattern(value: float) -> int:
    """The bits of a positive float32; those of infinity where it is beyond."""
    if value > float(np.finfo(np.float32).max):
        value = math.inf
    return int(np.float32(value).view(np.uint32))


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
