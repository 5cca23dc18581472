"""Costs are the bytes that reading really takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.blocks import BlockGrid
from mergepipe.plan.cost import base_bytes, block_costs, full_bytes, grid_of, largest_block, output_bytes
from mergepipe.plan.logical import ExpertTensor, LogicalPlan, TensorMerge


def merge(shape: tuple[int, ...], *experts: tuple[str, int], code: str = "BF16", out: str = "F32") -> TensorMerge:
    """A tensor with experts given as (dtype, elements covered)."""
    parts = tuple(ExpertTensor(n + 1, "w", dtype, covered, {}) for n, (dtype, covered) in enumerate(experts))
    return TensorMerge("w", shape, code, out, "w", parts, {})


def plan(*tensors: TensorMerge) -> LogicalPlan:
    """A logical plan of these tensors."""
    return LogicalPlan("linear", "linear@mergekit", 0, (), tensors, ())


@given(st.integers(0, 300), st.integers(1, 50), st.integers(0, 300), st.sampled_from(["BF16", "F32", "F8_E4M3"]))
def test_blocks_cost_what_the_expert_stores_of_them(elements: int, block: int, covered: int, code: str) -> None:
    """Each covered element its item size, at the block it is in; beyond the expert's rows nothing."""
    size = {"BF16": 2, "F32": 4, "F8_E4M3": 1}[code]
    covered = min(covered, elements)
    grid = BlockGrid(elements, block)
    expected = [0] * grid.count
    for element in range(covered):
        expected[element // block] += size
    assert block_costs(ExpertTensor(1, "w", code, covered, {}), grid).tolist() == expected


def test_totals_of_a_plan() -> None:
    """Experts by what they cover in their own dtype, the base and the output by theirs."""
    logical = plan(merge((4, 5), ("BF16", 20), ("F32", 10)), merge((3,), code="I64", out="I64"), merge((), ("F64", 1)))
    assert full_bytes(logical) == 40 + 40 + 8
    assert base_bytes(logical) == 40 + 24 + 2
    assert output_bytes(logical) == 80 + 24 + 4


def test_a_budget_in_blocks_is_of_the_largest_block() -> None:
    """The dearest block of any expert; none where there is nothing to read."""
    logical = plan(merge((4, 5), ("BF16", 20), ("F32", 10)), merge((100,), ("BF16", 100)))
    assert grid_of(logical.tensors[0], 20).block == 10
    assert largest_block(logical, 20) == 40
    assert largest_block(plan(merge((3,), code="I64", out="I64")), 20) == 0
    assert largest_block(plan(), 20) == 0


def test_the_grid_is_of_the_bases_storage_and_heads() -> None:
    """Its item size and its row multiple."""
    tensor = TensorMerge("q", (16, 8), "F32", "F32", "q", (), {}, row_multiple=4)
    assert grid_of(tensor, 100).block == 32
    assert grid_of(tensor, 300).block == 64
