"""Block geometry, in elements: a grid partitions one tensor into runs of whole rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The partition of a tensor of `elements` elements into blocks of `block` elements.

    `block` is a multiple of the row length where the tensor has rows; the last block may be short.
    A tensor without elements has no blocks.
    """

    elements: int
    block: int

    @property
    def count(self) -> int:
        return -(-self.elements // self.block)

    def span(self, number: int) -> tuple[int, int]:
        """First and one-past-last element of block `number`."""
        start = number * self.block
        return start, min(start + self.block, self.elements)

    def size(self, number: int) -> int:
        """Elements in block `number`."""
        start, stop = self.span(number)
        return stop - start


def block_grid(shape: Sequence[int], itemsize: int, target_bytes: int, row_multiple: int = 1) -> BlockGrid:
    """The grid for a tensor: about `target_bytes` a block, whole rows of the last dimension.

    `row_multiple` keeps that many rows together (an attention head's rows). A row, or such a
    group of rows, larger than the target is one block. 0-d and 1-d tensors have rows of one element.
    """
    elements = math.prod(shape)
    row = shape[-1] if len(shape) > 1 else 1
    unit = max(1, row) * max(1, row_multiple)
    units = max(1, target_bytes // max(1, itemsize * unit))
    return BlockGrid(elements, units * unit)
