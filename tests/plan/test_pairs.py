"""What the index is asked for is cut as the plan will cut it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mergepipe.plan.cost import grid_of
from mergepipe.plan.family import FamilyRules, MissingRule
from mergepipe.plan.pairs import index_pairs
from mergepipe.testing.checkpoints import fine_tune, llama_config, tiny_llama, typed, write_checkpoint
from mergepipe.testing.plans import corridor


def test_pairs_have_the_plans_grids_and_its_sources(tmp_path: Path) -> None:
    """One pair an expert, over what can be merged: no buffers, nothing empty, nothing missing; q and k by heads."""
    base = tiny_llama(0, hidden=16, heads=2)
    more = {"model.steps": ("I64", np.arange(3)), "model.none": ("BF16", np.zeros((0, 4)))}
    expert = fine_tune(base, 1)
    less = {name: values for name, values in expert.items() if name != "model.norm.weight"}
    write_checkpoint(tmp_path / "base", {**typed(base, "BF16"), **more}, llama_config(hidden=16))
    write_checkpoint(tmp_path / "a", {**typed(expert, "BF16"), **more}, llama_config(hidden=16))
    write_checkpoint(tmp_path / "b", {**typed(less, "BF16"), **more}, llama_config(hidden=16))
    rules = FamilyRules(missing=MissingRule.SKIP)
    way = corridor(tmp_path / "base", [tmp_path / "a", tmp_path / "b"], rules=rules, block_bytes=100)
    pairs = index_pairs(way.composition, 100)
    assert [pair.source for pair in pairs] == [each.source for each in way.logical.inputs[1:]]
    assert [tensor.base.name for tensor in pairs[0].tensors] == list(base)
    assert [tensor.base.name for tensor in pairs[1].tensors] == [name for name in base if name != "model.norm.weight"]
    merges = {tensor.name: tensor for tensor in way.logical.tensors}
    for pair in pairs:
        for tensor in pair.tensors:
            grid = grid_of(merges[tensor.base.name], 100)
            assert (tensor.block, tensor.blocks) == (grid.block, grid.count)
            assert tensor.elements == tensor.base.elements
    query = next(tensor for tensor in pairs[0].tensors if tensor.base.name.endswith("0.self_attn.q_proj.weight"))
    assert query.block == 8 * 16
