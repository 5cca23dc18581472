"""Merging a tile in one call, from stored bytes to stored bytes, with the bits of decoding, `write` and encoding.

The loops are compiled where numba is installed (`mergepipe.operators.compiled_merges`). Without it, and for what they
do not cover, there is no kernel, and the array loops do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.compiling import compiled_module
from mergepipe.core.dtypes import DType

Raw = NDArray[np.uint8]


class Kernel(Protocol):
    """The merge of one tensor. Workers may share it."""

    def merge(self, start: int, base: Raw, experts: Sequence[Raw | None], out: Raw) -> bool:
        """Merge the elements from `start` on: stored bytes of the base and, where they are read, of the experts.

        Returns whether all went as usual. If not (a value is not finite, or might not be on the way, or does not fit
        the output's dtype), what `out` holds is of no use; the array loops tell what it is.
        """

    def is_finite(self, base: Raw) -> bool:
        """Whether all of a tile's stored values of the base are finite."""


def kernel_for(coefficients: Any, base: DType, experts: Sequence[DType], out: DType) -> Kernel | None:
    """The kernel for an operator's coefficients and a tensor's stored dtypes, if there is one."""
    compiled = compiled_module("mergepipe.operators.compiled_merges")
    if compiled is None:
        return None
    kernel: Kernel | None = compiled.kernel_for(coefficients, base, experts, out)
    return kernel
