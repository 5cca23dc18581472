"""A plan as text says what is read from whom, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mergepipe.plan.access import read_set
from mergepipe.plan.cost import block_costs, grid_of
from mergepipe.plan.explain import explain_plan
from mergepipe.testing.checkpoints import write_checkpoint, write_family
from mergepipe.testing.plans import corridor


def test_experts_components_tensors_and_files_are_listed(tmp_path: Path) -> None:
    """Sums and shares are those of the plan; every tensor and every file has its line."""
    family = write_family(tmp_path, experts=2)
    way = corridor(family.base, family.experts, block_bytes=64, shard_bytes=1500)
    plan = way.choose("30%")
    lines = list(explain_plan(plan))
    assert lines[0] == f"task_arithmetic@mergekit over 2 experts, {len(way.logical.tensors)} tensors, seed 0"
    assert lines[1].startswith("budget 30%: ")
    assert "policy norm" in lines[1]
    for place, source in enumerate(each.source for each in way.logical.inputs[1:]):
        spent = full = 0
        for number, tensor in enumerate(way.logical.tensors):
            costs = block_costs(tensor.experts[place], grid_of(tensor, 64))
            spent += int(costs[read_set(plan.tensors[number], place, costs.size)].sum())
            full += int(costs.sum())
        (line,) = [line for line in lines if line.startswith(f"  {source}: ")]
        assert line.endswith(f"({100 * spent / full:.1f} %)")
    assert all(any(line.startswith(f"  {tensor.name}  ") for line in lines) for tensor in way.logical.tensors)
    assert all(any(line.startswith(f"  {file.name}: ") for line in lines) for file in way.logical.files)
    assert any(line.startswith("  mlp.down: ") for line in lines)


def test_copied_tensors_are_said_to_be_copied(tmp_path: Path) -> None:
    """Buffers, and everything where there is no expert: no share divides by nothing."""
    tensors: dict[str, Any] = {"w": ("F32", np.ones((3, 4))), "steps": ("I64", np.arange(2))}
    for name in ("base", "expert"):
        write_checkpoint(tmp_path / name, tensors)
    lines = list(explain_plan(corridor(tmp_path / "base", [tmp_path / "expert"]).choose()))
    assert "  steps  [2]  copied from the base" in lines
    assert "  w  [3, 4]  blocks read of each expert: 1/1" in lines
    assert f"  0:{tmp_path / 'expert'}: 48 B of 48 B (100.0 %)" in lines
    lines = list(explain_plan(corridor(tmp_path / "base", []).choose()))
    assert "  w  [3, 4]  copied from the base" in lines
