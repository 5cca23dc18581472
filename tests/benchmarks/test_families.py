"""Families of real shapes, synthetic values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.families import SHAPES, Family, Shape, weight_files, write_family
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import read_floats, read_tensors

MICRO = Shape("micro", 2, 32, 4, 2, 8, 48, 300, qk_norm=True)


def contents(model: Path) -> dict[str, bytes]:
    """Every file of a model."""
    return {path.name: path.read_bytes() for path in sorted(model.iterdir())}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The `small` shape with two experts."""
    return write_family(tmp_path_factory.mktemp("small"), SHAPES["small"], 2)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    """Shape, seed and an expert's number decide every byte; how many experts there are does not matter."""
    one = write_family(tmp_path / "one", MICRO, 1)
    two = write_family(tmp_path / "two", MICRO, 2)
    assert contents(one.base) == contents(two.base)
    assert contents(one.experts[0]) == contents(two.experts[0])
    assert contents(two.experts[0]) != contents(two.experts[1])


def test_other_seed_other_bytes(tmp_path: Path) -> None:
    """Another seed gives another base."""
    left, right = (write_family(tmp_path / str(seed), MICRO, 0, seed) for seed in (0, 1))
    assert weight_files(left.base)[0].read_bytes() != weight_files(right.base)[0].read_bytes()


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_tensors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """config.json loads, and the model that transformers makes of it has these tensors and no others but the tied."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = SHAPES[name]
    (tmp_path / "config.json").write_text(json.dumps(shape.config()))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if key != "lm_head.weight"}
    assert dict(shape.tensors()) == expected


def test_known_sizes() -> None:
    """The two shapes named after models have as many parameters as those models."""
    counts = {name: sum(int(np.prod(extents)) for _, extents in shape.tensors()) for name, shape in SHAPES.items()}
    assert counts["qwen3-0.6b"] == 596_049_920
    assert counts["llama-3.2-1b"] == 1_235_814_400


def test_transformers_loads_it(tmp_path: Path) -> None:
    """A generated model loads with nothing missing and gives finite logits."""
    import torch
    from transformers import AutoModelForCausalLM

    family = write_family(tmp_path, MICRO, 1)
    model, report = AutoModelForCausalLM.from_pretrained(family.experts[0], output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert torch.isfinite(model(torch.arange(8)[None]).logits).all()


def test_zero_delta_blocks(small: Family) -> None:
    """Some blocks of 1 MiB are untouched by an expert, most are not, and untouched tensors are not all there is."""
    base, expert = read_tensors(small.base), read_tensors(small.experts[0])
    block = 1 << 20
    partly = untouched = blocks = 0
    for name, (_, raw, _) in base.items():
        same = [
            raw[start : start + block] == expert[name][1][start : start + block] for start in range(0, len(raw), block)
        ]
        blocks += len(same)
        untouched += sum(same)
        partly += any(same) and not all(same)
    assert 0 < untouched < blocks / 2
    assert partly > 0


def test_deltas_differ_in_size(small: Family) -> None:
    """Norms of deltas vary by more than tenfold over tensors, and over the row bands of the embedding."""
    base, expert = read_floats(small.base), read_floats(small.experts[1])
    spread = {name: float(np.sqrt(np.mean((expert[name] - base[name]) ** 2))) for name in base if base[name].ndim > 1}
    touched = [value for value in spread.values() if value]
    assert max(touched) > 10 * min(touched)
    name = "model.embed_tokens.weight"
    rows = np.sqrt(np.mean((expert[name] - base[name]) ** 2, axis=1))
    assert np.quantile(rows, 0.99) > 10 * np.quantile(rows, 0.01)


def test_deltas_are_heavy_tailed(small: Family) -> None:
    """Within a row band of one scale, the kurtosis of deltas is far above a normal variable's 3."""
    name = "model.layers.0.mlp.up_proj.weight"
    delta = (read_floats(small.experts[0])[name] - read_floats(small.base)[name]).astype(np.float64)
    rows = delta[np.any(delta != 0, axis=1)]
    scaled = rows / np.sqrt(np.mean(rows**2, axis=1, keepdims=True))
    assert np.mean(scaled**4) > 6


def test_shards_hold_the_same(tmp_path: Path) -> None:
    """A sharded family has the same tensors as one in single files, and its index agrees with its files."""
    whole = write_family(tmp_path / "whole", MICRO, 1)
    cut = write_family(tmp_path / "cut", MICRO, 1, shard_bytes=20_000)
    assert len(weight_files(cut.base)) > 2
    for left, right in zip((whole.base, *whole.experts), (cut.base, *cut.experts), strict=True):
        assert read_tensors(left) == read_tensors(right)
        assert set(open_checkpoint(str(right), Meter()).tensors) == {name for name, _ in MICRO.tensors()}


def test_complete_models_are_kept(tmp_path: Path) -> None:
    """What is there is not written again; what a killed run left is replaced."""
    first = write_family(tmp_path, MICRO, 1)
    before = weight_files(first.base)[0].stat()
    (tmp_path / ".expert2.partial").mkdir()
    (tmp_path / ".expert2.partial" / "model.safetensors").write_bytes(b"half")
    said: list[str] = []
    second = write_family(tmp_path, MICRO, 2, say=said.append)
    after = weight_files(second.base)[0].stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [line.split()[0] for line in said] == ["kept", "kept", "wrote"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "expert1", "expert2"]


@pytest.mark.parametrize("damage", ["other seed", "other shape", "cut short", "not a family"])
def test_other_models_are_not_replaced(tmp_path: Path, damage: str) -> None:
    """A folder that holds something else, or a damaged model, is refused by name and left as it is."""
    if damage == "not a family":
        (tmp_path / "base").mkdir()
        (tmp_path / "base" / "notes.txt").write_text("mine")
    else:
        file = weight_files(write_family(tmp_path, MICRO, 0).base)[0]
        if damage == "cut short":
            file.write_bytes(file.read_bytes()[:-2])
    before = contents(tmp_path / "base")
    shape = replace(MICRO, vocabulary=301) if damage == "other shape" else MICRO
    with pytest.raises(FileExistsError, match="base: is there, but was not made with these parameters"):
        write_family(tmp_path, shape, 0, seed=7 if damage == "other seed" else 0)
    assert contents(tmp_path / "base") == before
