"""A merged model is an ordinary one: transformers loads it, shards, tokenizer files and all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mergepipe import api
from mergepipe.testing.checkpoints import read_floats
from tests.laws.world import World

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard_bytes", [5 * 10**9, 4000])
def test_transformers_loads_what_was_published(tmp_path: Path, tied: bool, shard_bytes: int) -> None:
    """`from_pretrained` finds every weight, takes no other, and computes with them."""
    world = World.make(tmp_path, experts=3, hidden=16, vocab=64, tied=tied)
    out = world.fresh()
    options = api.PlanOptions(budget="50%", block_bytes=64, shard_bytes=shard_bytes)
    api.merge(world.recipe("ties"), out, options, world.index)
    assert (out / "model.safetensors.index.json").exists() == (shard_bytes < 5000)
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        out, output_loading_info=True, local_files_only=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    state = model.state_dict()
    for name, values in read_floats(out).items():
        assert torch.equal(state[name].float(), torch.from_numpy(values).float()), name
    with torch.no_grad():
        logits = model(torch.arange(8)[None]).logits
    assert torch.isfinite(logits).all()


def test_the_bases_other_files_come_along(world: World) -> None:
    """Sidecars are the base's bytes; config.json differs in the dtype alone."""
    out, _ = world.merge(world.recipe("ties", out_dtype="float32"))
    for name in ("generation_config.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (world.base / name).read_bytes()
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (out, world.base))
    changed = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    assert changed <= {"dtype", "torch_dtype"}
    assert "float32" in {ours.get("dtype"), ours.get("torch_dtype")}
