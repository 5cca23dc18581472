"""Families of headers and holes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.families import Shape, write_family
from benchmarks.hollow import LLAMA_8B, UntiedShape, parameters_of, write_hollow_family, write_made_up_index
from benchmarks.recipes import recipe_text
from mergepipe import api
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.store.meter import Meter

MICRO = Shape("micro", 2, 32, 4, 2, 8, 48, 300, qk_norm=True)


def test_headers_are_those_of_a_real_family(tmp_path: Path) -> None:
    """Names, shapes, offsets and sizes are the same as where there are weights; the weights take no disk."""
    hollow = write_hollow_family(tmp_path / "hollow", MICRO, 2)
    real = write_family(tmp_path / "real", MICRO, 2)
    for left, right in zip((hollow.base, *hollow.experts), (real.base, *real.experts), strict=True):
        ours, theirs = (open_checkpoint(str(model), Meter()) for model in (left, right))
        assert ours.tensors == theirs.tensors
        assert ours.header_digest == theirs.header_digest


def test_values_are_holes(tmp_path: Path) -> None:
    """A file of many megabytes takes a few kilobytes."""
    wide = Shape("wide", 1, 512, 4, 2, 64, 1024, 32000, qk_norm=False)
    file = write_hollow_family(tmp_path, wide, 0).weights[0].stat()
    assert file.st_size > 32 << 20
    assert file.st_blocks * 512 < 1 << 20


def test_eight_billion() -> None:
    """The shape has the parameters of the model it is named after, and transformers' names for them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    assert parameters_of(LLAMA_8B) == 8_030_261_248
    config = LLAMA_8B.config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert dict(LLAMA_8B.tensors()) == {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def test_plans_need_no_weights(tmp_path: Path) -> None:
    """With the made-up index a plan under budget is made without reading an expert, the same each time."""
    plans = []
    for name in ("one", "two"):
        family = write_hollow_family(tmp_path / name, UntiedShape(*(getattr(MICRO, f) for f in MICRO.__slots__)), 3)
        recipe = tmp_path / f"{name}.yml"
        recipe.write_text(recipe_text("ties", family))
        items = write_made_up_index(recipe, tmp_path / name / "index")
        assert items == 3 * len(MICRO.tensors()) + 3  # each tensor is one block, the head is one more
        where = api.IndexOptions(tmp_path / name / "index", reads=False)
        plans.append(api.plan(recipe, api.PlanOptions(budget="40%"), where))
    for planned in plans:
        assert planned.index_bytes == 0
        assert 0 < planned.plan.planned_bytes <= 0.4 * planned.plan.full_bytes
        assert planned.plan.bound.kind == "certified"
    assert [each.reads for each in plans[0].plan.tensors] == [each.reads for each in plans[1].plan.tensors]


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    """A family is made once; another one in its place is an error, and stays."""
    family = write_hollow_family(tmp_path, MICRO, 1)
    before = family.weights[0].stat().st_mtime_ns
    assert write_hollow_family(tmp_path, MICRO, 1) == family
    assert family.weights[0].stat().st_mtime_ns == before
    with pytest.raises(FileExistsError):
        write_hollow_family(tmp_path, UntiedShape("other", 1, 32, 4, 2, 8, 48, 300, qk_norm=True), 1)
    assert json.loads((family.base / "config.json").read_text())["num_hidden_layers"] == 2
