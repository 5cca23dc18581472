"""Mixtures of experts and multimodal models: every tensor is merged or copied, at any budget, whole or by slices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe import api
from mergepipe.checkpoint.names import part_beside
from mergepipe.errors import IncompatibleModels
from mergepipe.testing.architectures import (
    ARCHITECTURES,
    MULTIMODAL,
    TOWER_LAYERS,
    Architecture,
    plain_text_of,
    random_weights,
)
from mergepipe.testing.checkpoints import fine_tune, read_floats, read_tensors, typed, write_checkpoint
from tests.laws.world import difference, stored
from tests.operators import reference

LAYERS = 3
BLOCK = 64


def write(folder: Path, architecture: Architecture, seed: int = 0, tuned: int = 0, shards: int = 1) -> Path:
    """A model of an architecture; with `tuned`, that fine-tune of it."""
    weights = random_weights(architecture, seed)
    if tuned:
        weights = fine_tune(weights, tuned, untouched=0.1)
    return write_checkpoint(folder, typed(weights, "BF16"), architecture.config, shards)


def family(folder: Path, kind: str, experts: int = 2, layers: int = LAYERS) -> tuple[Path, ...]:
    """A base and fine-tunes of one kind."""
    architecture = ARCHITECTURES[kind](layers)
    base = write(folder / "base", architecture, shards=2)
    return base, *(write(folder / f"expert{n}", architecture, tuned=n, shards=n) for n in range(1, experts + 1))


def merge(folder: Path, recipe: Mapping[str, Any], budget: str | None = None, **more: Any) -> tuple[Path, Any]:
    """Merge a recipe into a fresh folder below `folder`; returns it and the result."""
    number = sum(1 for _ in folder.glob("out-*"))
    path, out = folder / f"recipe-{number}.yml", folder / f"out-{number}"
    path.write_text(json.dumps(recipe))
    options = api.PlanOptions(budget, block_bytes=BLOCK, **more)
    return out, api.merge(path, out, options, api.IndexOptions(folder / "index"))


def task(base: Path, experts: Sequence[Path], method: str = "task_arithmetic", **parameters: Any) -> dict[str, Any]:
    """A recipe of whole models, experts weighed alike."""
    models = [{"model": str(path), "parameters": {"weight": 0.5}} for path in experts]
    return {"merge_method": method, "base_model": str(base), "models": models, "parameters": parameters}


def source(model: Path, first: int, stop: int) -> dict[str, Any]:
    """One source of a slice."""
    return {"model": str(model), "layer_range": [first, stop]}


def passthrough(*slices: dict[str, Any]) -> dict[str, Any]:
    """A frankenmerge."""
    return {"merge_method": "passthrough", "slices": [{"sources": [each]} for each in slices]}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_whole_models_are_merged_under_any_budget(kind: str, tmp_path: Path) -> None:
    """Full read equals the formula in every tensor, fused experts and towers too; a budget stays within its bound."""
    base, *experts = family(tmp_path, kind)
    full, result = merge(tmp_path, task(base, experts))
    theta, tuned = read_floats(base), [read_floats(path) for path in experts]
    made = read_tensors(full)
    assert {name: shape for name, (_, _, shape) in made.items()} == dict(ARCHITECTURES[kind](LAYERS).shapes)
    expected = {
        name: reference.task_arithmetic(
            values.ravel(), [(each[name] - values).ravel() for each in tuned], [0.5, 0.5], False, 1.0
        )
        for name, values in theta.items()
    }
    assert {name: raw for name, (_, raw, _) in made.items()} == stored(expected)
    assert not [note for note in result["notes"] if "warning" in note]

    part, result = merge(tmp_path, task(base, experts), "30%")
    assert 0 < result["expert_bytes"]["read"] <= result["expert_bytes"]["budget"]
    assert result["bound"]["kind"] == "certified"
    assert 0 < difference(full, part) <= result["bound"]["l2"] + result["bound"]["rounding_l2"]
    again = tmp_path / "again"
    api.replay(part, again)
    assert read_tensors(again) == read_tensors(part)


@pytest.mark.parametrize("method", ["ties", "dare_ties", "nuslerp", "model_stock"])
@pytest.mark.parametrize("kind", ["mixtral_fused", "qwen2_moe", "llava"])
def test_methods_that_know_whole_tensors(kind: str, method: str, tmp_path: Path) -> None:
    """Order statistics and inner products of tensors of three and four dimensions; budget and bound hold for them."""
    base, *experts = family(tmp_path, kind)
    density = {"density": 0.5} if method in ("ties", "dare_ties") else {}
    full, _ = merge(tmp_path, task(base, experts, method, **density))
    part, result = merge(tmp_path, task(base, experts, method, **density), "40%")
    assert result["bound"]["kind"] == "certified"
    assert difference(full, part) <= result["bound"]["l2"] + result["bound"]["rounding_l2"]


def layer_names(names: Sequence[str], text: str, layer: int) -> dict[str, str]:
    """Names of a text layer by what follows its number."""
    prefix = f"{text}layers.{layer}."
    return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_frankenmerge_renumbers_only_the_language_models_layers(kind: str, tmp_path: Path) -> None:
    """Layers are stacked as they are; towers stay whole, from the first slice; norm and head are the last slice's."""
    base, expert, _ = family(tmp_path, kind)
    out, _ = merge(tmp_path, passthrough(source(base, 0, 3), source(expert, 1, 3)))
    made, mine, theirs = (read_tensors(path) for path in (out, base, expert))
    text = ARCHITECTURES[kind](LAYERS).text
    left = set(made)
    for layer, (model, number) in enumerate([(mine, 0), (mine, 1), (mine, 2), (theirs, 1), (theirs, 2)]):
        wanted = layer_names(list(model), text, number)
        found = layer_names(list(made), text, layer)
        assert {part: made[name] for part, name in found.items()} == {part: model[n] for part, n in wanted.items()}
        left -= set(found.values())
    outside = {name for name in mine if not name.startswith(f"{text}layers.")}
    assert left == outside
    last = {f"{text}norm.weight", *(name for name in outside if name.endswith("lm_head.weight"))}
    for name in outside:
        assert made[name] == (theirs if name in last else mine)[name], name


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_config_says_what_the_layers_are(kind: str, tmp_path: Path) -> None:
    """Numbers, types and kinds of layers follow the stack, in the language model's part alone."""
    base, expert, _ = family(tmp_path, kind)
    out, _ = merge(tmp_path, passthrough(source(base, 0, 2), source(expert, 0, 3)))
    was, is_ = (json.loads((path / "config.json").read_text()) for path in (base, out))
    text_was, text_is = (config.get("text_config", config) for config in (was, is_))
    assert text_is["num_hidden_layers"] == 5
    if "layer_types" in text_was:
        assert text_is["layer_types"] == [text_was["layer_types"][n] for n in (0, 1, 0, 1, 2)]
    if kind == "qwen3_moe":
        assert text_is["mlp_only_layers"] == [0, 2]
    if kind in MULTIMODAL:
        assert is_["vision_config"] == was["vision_config"]
        assert {key for key in is_ if is_[key] != was.get(key)} == {"text_config"}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_transformers_loads_merges_and_frankenmerges(kind: str, tmp_path: Path) -> None:
    """No weight of the published model is missing or unexpected, and its language model computes."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    base, *experts = family(tmp_path, kind)
    auto = transformers.AutoModelForImageTextToText if kind in MULTIMODAL else transformers.AutoModelForCausalLM
    whole, _ = merge(tmp_path, task(base, experts, "ties"), "50%")
    franken, _ = merge(tmp_path, passthrough(source(base, 0, 2), source(experts[0], 0, 3)))
    for out, depth in ((whole, LAYERS), (franken, 5)):
        model, loading = auto.from_pretrained(out, output_loading_info=True, local_files_only=True)
        assert not any(loading.values()), loading
        assert model.config.get_text_config().num_hidden_layers == depth
        with torch.no_grad():
            logits = model(input_ids=torch.arange(3, 11)[None]).logits
        assert torch.isfinite(logits).all()


@pytest.mark.parametrize("kind", MULTIMODAL)
def test_a_text_only_expert_is_merged_into_the_language_model(kind: str, tmp_path: Path) -> None:
    """The tower stays the base's, which is said; every text tensor is merged."""
    architecture, plain = MULTIMODAL[kind](LAYERS), plain_text_of(kind, LAYERS)
    base = write(tmp_path / "base", architecture)
    renamed = {name: random_weights(architecture, 0)[whole] for name, whole in text_names(architecture, plain).items()}
    tuned = fine_tune(renamed, 3, untouched=0.0)
    expert = write_checkpoint(tmp_path / "text", typed(tuned, "BF16"), plain.config)
    out, result = merge(tmp_path, task(base, [expert]))
    made, mine = read_tensors(out), read_tensors(base)
    assert set(made) == set(mine)
    beside = {name for name in mine if part_beside(name)}
    assert {name for name in mine if made[name] == mine[name]} == beside
    warnings = [note for note in result["notes"] if note.startswith("warning")]
    assert any("only the language models are merged" in note for note in warnings)
    assert any("has nothing of the base's" in note and f"{len(beside)} tensors" in note for note in warnings)


@pytest.mark.parametrize("kind", MULTIMODAL)
def test_a_multimodal_expert_of_a_text_only_base(kind: str, tmp_path: Path) -> None:
    """The output is the base's text-only model; what the expert has beside it is said not to be written."""
    architecture, plain = MULTIMODAL[kind](LAYERS), plain_text_of(kind, LAYERS)
    base = write(tmp_path / "base", plain)
    expert = write(tmp_path / "whole", architecture, seed=1)
    out, result = merge(tmp_path, task(base, [expert]))
    made, mine, theirs = (read_floats(path) for path in (out, base, expert))
    assert set(made) == set(mine)
    for name, whole in text_names(architecture, plain).items():
        expected = mine[name] + np.float32(0.5) * (theirs[whole] - mine[name])
        np.testing.assert_allclose(made[name], expected, rtol=2**-8)
    beside = [name for name in theirs if part_beside(name)]
    assert any(f"{len(beside)} tensors are not in the base and are not written" in note for note in result["notes"])


def text_names(architecture: Architecture, plain: Architecture) -> dict[str, str]:
    """Names of a text-only model's tensors → of the same in the multimodal model."""
    head = next((name for name in architecture.shapes if name.endswith("lm_head.weight")), "")
    return {
        name: head if name == "lm_head.weight" else architecture.text + name.removeprefix("model.")
        for name in plain.shapes
    }


def test_a_tower_of_which_a_part_is_missing_stops_the_run(tmp_path: Path) -> None:
    """Only a part that is lacking whole is a model without it."""
    base, expert, _ = family(tmp_path, "llava")
    weights = {name: values for name, values in read_floats(expert).items() if ".encoder.layers.3." not in name}
    config = json.loads((expert / "config.json").read_text())
    maimed = write_checkpoint(tmp_path / "maimed", typed(weights, "BF16"), config)
    with pytest.raises(IncompatibleModels, match=r"maimed: 16 of the base's .*encoder\.layers\.3.*--missing skip"):
        merge(tmp_path, task(base, [maimed]))


@pytest.mark.parametrize(("one", "other"), [("mixtral", "mixtral_fused"), ("mixtral_fused", "mixtral")])
def test_fused_and_single_experts_do_not_meet(one: str, other: str, tmp_path: Path) -> None:
    """The error names both layouts, with an example of each; nothing is published."""
    base = write(tmp_path / "base", ARCHITECTURES[one](LAYERS))
    expert = write(tmp_path / "other", ARCHITECTURES[other](LAYERS), tuned=1)
    with pytest.raises(IncompatibleModels) as caught:
        merge(tmp_path, task(base, [expert]))
    for word in ("fused", "one by one", "mlp.experts.gate_up_proj", "block_sparse_moe.experts.0.w1"):
        assert word in str(caught.value)
    assert caught.value.exit_code == 3
    assert not list(tmp_path.glob("out-*"))


def test_gradients_run_over_each_stack_of_layers(tmp_path: Path) -> None:
    """A tower's layers are a stack of their own: its first layer takes the first value, its last the last."""
    base, expert, _ = family(tmp_path, "llava")
    recipe = task(base, [expert])
    recipe["models"][0]["parameters"]["weight"] = [0.0, 1.0]
    out, _ = merge(tmp_path, {**recipe, "out_dtype": "float32"})
    made, mine, theirs = (read_floats(path) for path in (out, base, expert))
    for name, values in mine.items():
        weight = 0.0
        for stack, depth in (("language_model.model.", LAYERS), ("vision_tower.vision_model.encoder.", TOWER_LAYERS)):
            if name.startswith(f"{stack}layers."):
                weight = int(name.removeprefix(f"{stack}layers.").split(".")[0]) / (depth - 1)
        expected = values + np.float32(weight) * (theirs[name] - values)
        np.testing.assert_allclose(made[name], expected, atol=1e-6, err_msg=name)


def test_filters_reach_towers_and_experts_by_name(tmp_path: Path) -> None:
    """A filter is a text in the tensor's name, whatever the tensor is."""
    base, expert, _ = family(tmp_path, "qwen3_vl")
    recipe = task(base, [expert])
    recipe["models"][0]["parameters"]["weight"] = [{"filter": "visual", "value": 0.0}, {"value": 1.0}]
    out, _ = merge(tmp_path, recipe)
    made, mine, theirs = (read_tensors(path) for path in (out, base, expert))
    for name in mine:
        assert made[name] == (mine if "visual" in name else theirs)[name], name


def test_models_saved_by_different_versions_of_transformers(tmp_path: Path) -> None:
    """Each part of a multimodal model may have a prefix of its own; all are reconciled, and said."""
    base, expert, _ = family(tmp_path, "llava")
    newer = {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head": "lm_head",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    }
    weights = {}
    for name, values in read_floats(expert).items():
        old = next(prefix for prefix in newer if name.startswith(prefix))
        weights[newer[old] + name.removeprefix(old)] = values
    config = json.loads((expert / "config.json").read_text())
    renamed = write_checkpoint(tmp_path / "renamed", typed(weights, "BF16"), config)
    same, _ = merge(tmp_path, task(base, [expert]))
    out, result = merge(tmp_path, task(base, [renamed]))
    assert read_tensors(out) == read_tensors(same)
    assert any("names reconciled" in note and "'model.'" in note for note in result["notes"])


def test_slices_of_a_text_only_model_in_a_multimodal_one(tmp_path: Path) -> None:
    """Layers of a plain model are stacked into the base's language model; the base's tower is copied, and said."""
    architecture, plain = MULTIMODAL["qwen3_vl"](LAYERS), plain_text_of("qwen3_vl", LAYERS)
    base, text = write(tmp_path / "base", architecture), write(tmp_path / "text", plain, seed=1)
    recipe = passthrough(source(text, 0, 2), source(base, 1, 3)) | {"base_model": str(base)}
    out, result = merge(tmp_path, recipe)
    made, mine, theirs = (read_tensors(path) for path in (out, base, text))
    for name in mine:
        if part_beside(name):
            assert made[name] == mine[name], name
    for layer, (model, prefix, number) in enumerate(
        [(theirs, "model.", 0), (theirs, "model.", 1), (mine, architecture.text, 1), (mine, architecture.text, 2)]
    ):
        wanted = layer_names(list(model), prefix, number)
        for part, name in layer_names(list(made), architecture.text, layer).items():
            assert made[name] == model[wanted[part]], name
    assert made[f"{architecture.text}embed_tokens.weight"] == theirs["model.embed_tokens.weight"]
    assert len(made) == len(mine) + len(layer_names(list(mine), architecture.text, 0))
    assert any("are in no slice's model, copied from here" in note for note in result["notes"])


def test_slices_of_a_multimodal_model_in_a_text_only_one(tmp_path: Path) -> None:
    """The output is like the base: the other's tower is said not to be written."""
    architecture, plain = MULTIMODAL["qwen3_vl"](LAYERS), plain_text_of("qwen3_vl", LAYERS)
    base, whole = write(tmp_path / "base", plain), write(tmp_path / "whole", architecture, seed=1)
    recipe = passthrough(source(whole, 0, 2), source(base, 1, 3)) | {"base_model": str(base)}
    out, result = merge(tmp_path, recipe)
    made = read_tensors(out)
    assert not any(part_beside(name) for name in made)
    assert sum("visual" in note and "not written" in note for note in result["notes"]) >= 1
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 4
