"""Grids partition tensors into whole rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.blocks import BlockGrid, block_grid

shapes = st.lists(st.integers(0, 40), max_size=4).map(tuple)


@given(shapes, st.sampled_from([1, 2, 4, 8]), st.integers(0, 5000), st.integers(1, 5))
def test_blocks_partition_the_tensor(shape: tuple[int, ...], itemsize: int, target: int, heads: int) -> None:
    """Blocks follow one another without gap or overlap, none is empty, and together they are the tensor."""
    grid = block_grid(shape, itemsize, target, heads)
    at = 0
    for number in range(grid.count):
        start, stop = grid.span(number)
        assert start == at
        assert stop > start
        assert grid.size(number) == stop - start
        at = stop
    assert at == grid.elements == math.prod(shape)


@given(shapes, st.sampled_from([1, 2, 4, 8]), st.integers(0, 5000), st.integers(1, 5))
def test_blocks_are_whole_groups_of_rows_near_the_target(
    shape: tuple[int, ...], itemsize: int, target: int, heads: int
) -> None:
    """As many whole groups of rows as the target holds, and at least one."""
    grid = block_grid(shape, itemsize, target, heads)
    unit = max(1, shape[-1] if len(shape) > 1 else 1) * heads
    assert grid.block % unit == 0
    assert grid.block * itemsize <= max(target, unit * itemsize)
    assert (grid.block + unit) * itemsize > target


def test_a_row_larger_than_the_target_is_a_block() -> None:
    """Rows are never cut."""
    grid = block_grid((3, 1000), 2, 64)
    assert [grid.span(n) for n in range(grid.count)] == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_heads_stay_whole() -> None:
    """With 4 rows a head and room for 6 rows, a block is one head."""
    assert block_grid((16, 8), 2, 6 * 16, row_multiple=4).block == 32


@pytest.mark.parametrize("shape", [(0,), (5, 0), (0, 5), (2, 0, 3)])
def test_a_tensor_without_elements_has_no_blocks(shape: tuple[int, ...]) -> None:
    """Zero-size tensors are valid, and empty."""
    assert block_grid(shape, 2, 1024).count == 0


def test_a_scalar_is_one_block() -> None:
    """A 0-d tensor has one element."""
    grid = block_grid((), 4, 1024)
    assert (grid.count, grid.span(0)) == (1, (0, 1))


def test_the_last_block_may_be_short() -> None:
    """Ten elements in blocks of four."""
    grid = BlockGrid(10, 4)
    assert [grid.size(n) for n in range(grid.count)] == [4, 4, 2]
