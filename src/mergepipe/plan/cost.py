"""What reading costs: bytes of expert blocks, as the schedule will ask for them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.rows import RowTable
from mergepipe.core.blocks import BlockGrid, block_grid
from mergepipe.core.dtypes import dtype
from mergepipe.plan.logical import ExpertTensor, LogicalPlan, TensorMerge


def grid_of(tensor: TensorMerge, block_bytes: int) -> BlockGrid:
    """The block grid of an output tensor: about `block_bytes` of the base's storage a block."""
    return block_grid(tensor.shape, dtype(tensor.dtype).itemsize, block_bytes, tensor.row_multiple)


def block_costs(expert: ExpertTensor, grid: BlockGrid) -> NDArray[np.int64]:
    """Bytes of each block of one expert tensor; 0 for blocks beyond what the expert covers. Not to be written to."""
    return _block_costs(expert.elements, dtype(expert.dtype).itemsize, grid)


# The experts of a tensor nearly always agree, and planning asks several times.
@lru_cache(maxsize=64)
def _block_costs(elements: int, itemsize: int, grid: BlockGrid) -> NDArray[np.int64]:
    starts = np.arange(grid.count, dtype=np.int64) * grid.block
    costs: NDArray[np.int64] = np.clip(elements - starts, 0, grid.block) * itemsize
    costs.setflags(write=False)
    return costs


def full_bytes(logical: LogicalPlan) -> int:
    """Payload of all expert tensors the merge uses: what a full read of the experts costs.

    Tensors that are made from an expert alone (a slice taken whole) are among them, the base's bytes
    never, wherever they are used.
    """
    merged = sum(
        e.elements * dtype(e.dtype).itemsize
        for tensor in logical.tensors
        if tensor.assembly is None
        for e in tensor.experts
        if e.input != 0
    )
    return merged + required_bytes(logical)


def required_bytes(logical: LogicalPlan) -> int:
    """Expert bytes that every plan reads: tensors whose base is another input than the base model, rows by token."""
    return sum(required_of(logical, tensor) for tensor in logical.tensors)


def required_of(logical: LogicalPlan, tensor: TensorMerge) -> int:
    """The bytes of experts that an output tensor always takes."""
    if tensor.assembly is not None:
        return sum(size for input_, size in assembled_bytes(logical, tensor) if input_ != 0)
    return tensor.elements * dtype(tensor.dtype).itemsize if tensor.base_input != 0 else 0


def assembled_bytes(logical: LogicalPlan, tensor: TensorMerge) -> list[tuple[int, int]]:
    """(input, bytes read of it) for each place of an assembled tensor: every row once for each row it goes into."""
    assert tensor.assembly is not None
    rows = logical.row_maps[tensor.assembly.rows]
    row = tensor.elements // max(1, rows.rows)
    inputs = (tensor.base_input, *(expert.input for expert in tensor.experts))
    return [
        (input_, count * row * dtype(code).itemsize)
        for input_, count, code in zip(inputs, RowTable(rows).read_rows, tensor.assembly.stored, strict=True)
    ]


def base_bytes(logical: LogicalPlan) -> int:
    """Payload of the base model's tensors that the merge starts from; every merge reads them in full."""
    whole = sum(
        t.elements * dtype(t.dtype).itemsize for t in logical.tensors if t.base_input == 0 and t.assembly is None
    )
    assembled = (assembled_bytes(logical, tensor) for tensor in logical.tensors if tensor.assembly is not None)
    return whole + sum(size for places in assembled for input_, size in places if input_ == 0)


def output_bytes(logical: LogicalPlan) -> int:
    """Payload of the output's tensors."""
    return sum(tensor.elements * dtype(tensor.out_dtype).itemsize for tensor in logical.tensors)


def largest_block(logical: LogicalPlan, block_bytes: int) -> int:
    """Bytes of the largest expert block: what one block of a budget in blocks may cost."""
    sizes = [
        block_costs(expert, grid_of(tensor, block_bytes)).max(initial=0)
        for tensor in logical.tensors
        if tensor.assembly is None
        for expert in tensor.experts
    ]
    return int(max(sizes, default=0))
