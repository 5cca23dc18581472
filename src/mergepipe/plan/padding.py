"""Padding rows in a logical plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mergepipe.plan.logical import LogicalPlan, TensorMerge


def is_padded(logical: LogicalPlan, tensor: TensorMerge) -> bool:
    """Whether an assembled tensor has rows beyond those of tokens."""
    assert tensor.assembly is not None
    rows = logical.row_maps[tensor.assembly.rows]
    return rows.filled < rows.rows


def with_padding(tensor: TensorMerge, means: Sequence[NDArray[np.float64]]) -> TensorMerge:
    """The tensor with the padding row of each place written into its assembly."""
    assert tensor.assembly is not None
    padding = tuple(row.astype("<f8").tobytes().hex() for row in means)
    return replace(tensor, assembly=replace(tensor.assembly, padding=padding))
