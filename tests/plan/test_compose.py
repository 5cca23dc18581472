"""Composing recipes of slices: which layer of which model each output tensor is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe import api
from mergepipe.errors import BudgetInfeasible, IncompatibleModels, RecipeError
from mergepipe.plan.family import FamilyRules, MissingRule
from mergepipe.testing.checkpoints import read_floats, read_tensors, write_checkpoint, write_family


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four-layer models a (base), b (expert1) and c (expert2)."""
    folder = tmp_path_factory.mktemp("slices")
    write_family(folder, experts=2, layers=4)
    for path in folder.iterdir():
        config = json.loads((path / "config.json").read_text())
        config["layer_types"] = [f"{path.name}-{layer}" for layer in range(4)]
        (path / "config.json").write_text(json.dumps(config))
    return folder


def merge(family: Path, out: Path, document: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Merge a recipe given as a mapping."""
    recipe = out.with_suffix(".yml")
    recipe.write_text(json.dumps(document))
    index = api.IndexOptions(out.parent / "index")
    return dict(api.merge(recipe, out, api.PlanOptions(block_bytes=64, **options), index))


def source(family: Path, name: str, first: int, stop: int, **parameters: Any) -> dict[str, Any]:
    """One entry of `sources`."""
    return {"model": str(family / name), "layer_range": [first, stop], "parameters": parameters}


def layer_of(tensors: dict[str, Any], layer: int) -> dict[str, Any]:
    """A layer's tensors by their names without the layer."""
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def test_a_frankenmerge_stacks_layers_as_they_are(family: Path, tmp_path: Path) -> None:
    """Layers keep their bytes and get new numbers; embeddings are the first slice's, norm and head the last's."""
    document = {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [source(family, "base", 0, 3)]},
            {"sources": [source(family, "expert1", 1, 4)]},
            {"sources": [source(family, "base", 2, 3)]},
        ],
    }
    out = tmp_path / "franken"
    result = merge(family, out, document)
    made, base, other = (read_tensors(path) for path in (out, family / "base", family / "expert1"))
    origins = [(base, 0), (base, 1), (base, 2), (other, 1), (other, 2), (other, 3), (base, 2)]
    for number, (model, layer) in enumerate(origins):
        assert layer_of(made, number) == layer_of(model, layer)
    assert made["model.embed_tokens.weight"] == base["model.embed_tokens.weight"]
    assert made["model.norm.weight"] == base["model.norm.weight"]
    assert made["lm_head.weight"] == base["lm_head.weight"]
    config = json.loads((out / "config.json").read_text())
    assert config["num_hidden_layers"] == 7
    assert config["layer_types"] == ["base-0", "base-1", "base-2", "expert1-1", "expert1-2", "expert1-3", "base-2"]
    taken = sum(len(raw) for layer in (1, 2, 3) for _, raw, _ in layer_of(other, layer).values())
    assert result["expert_bytes"]["full"] == result["expert_bytes"]["read"] == taken
    again = tmp_path / "again"
    api.replay(out, again)
    assert read_tensors(again) == made


def test_a_budget_below_what_is_taken_whole_is_refused(family: Path, tmp_path: Path) -> None:
    """Slices of experts are required reads; the error has both figures."""
    document = {
        "merge_method": "passthrough",
        "slices": [{"sources": [source(family, "base", 0, 2)]}, {"sources": [source(family, "expert1", 2, 4)]}],
    }
    with pytest.raises(BudgetInfeasible) as caught:
        merge(family, tmp_path / "out", document, budget="50%")
    assert caught.value.needed > caught.value.budget > 0


def test_slices_merge_layers_with_their_own_settings(family: Path, tmp_path: Path) -> None:
    """Layers of unlike numbers meet; a slice's gradient runs over that slice; outer tensors take its first value."""
    document = {
        "merge_method": "linear",
        "parameters": {"normalize": False},
        "out_dtype": "float32",
        "slices": [
            {"sources": [source(family, "base", 0, 2, weight=1), source(family, "expert1", 2, 4, weight=[0, 1])]},
            {"sources": [source(family, "expert2", 1, 2, weight=1)]},
        ],
    }
    out = tmp_path / "out"
    merge(family, out, document)
    made, base, one, two = (read_floats(path) for path in (out, *(family / n for n in ("base", "expert1", "expert2"))))
    for number, weight in enumerate((0, 1)):
        ours, theirs = layer_of(base, number), layer_of(one, number + 2)
        for name, merged in layer_of(made, number).items():
            np.testing.assert_allclose(merged, ours[name] + weight * theirs[name], atol=1e-6)
    for name, merged in layer_of(made, 2).items():
        np.testing.assert_array_equal(merged, layer_of(two, 1)[name])
    np.testing.assert_array_equal(made["model.embed_tokens.weight"], base["model.embed_tokens.weight"])
    np.testing.assert_array_equal(made["model.norm.weight"], two["model.norm.weight"])


def test_a_budget_leaves_blocks_of_slices_out_within_the_bound(family: Path, tmp_path: Path) -> None:
    """Layers of unlike numbers are indexed as the pairs they are; the bound holds."""
    document = {
        "merge_method": "task_arithmetic",
        "base_model": str(family / "base"),
        "slices": [
            {"sources": [source(family, "base", 0, 2), source(family, "expert1", 2, 4, weight=0.5)]},
            {"sources": [source(family, "base", 0, 2), source(family, "expert2", 0, 2, weight=0.5)]},
        ],
    }
    full, part = tmp_path / "full", tmp_path / "part"
    merge(family, full, document)
    result = merge(family, part, document, budget="40%")
    assert 0 < result["expert_bytes"]["read"] <= 0.4 * result["expert_bytes"]["full"]
    assert api.distance(full, part) <= result["bound"]["l2"] + result["bound"]["rounding_l2"]


def test_slices_without_their_base_are_refused(family: Path, tmp_path: Path) -> None:
    """A method that measures from the base needs it among each slice's sources."""
    document = {
        "merge_method": "task_arithmetic",
        "base_model": str(family / "base"),
        "slices": [{"sources": [source(family, "expert1", 0, 2, weight=1)]}],
    }
    with pytest.raises(RecipeError, match="base_model"):
        merge(family, tmp_path / "out", document)


def test_a_layer_that_does_not_exist_is_named(family: Path, tmp_path: Path) -> None:
    """Ranges end before their second number, and models say how many layers they have."""
    document = {"merge_method": "passthrough", "slices": [{"sources": [source(family, "base", 2, 5)]}]}
    with pytest.raises(IncompatibleModels, match="no layer 4"):
        merge(family, tmp_path / "out", document)


def changed(family: Path, folder: Path, name: str, change: dict[str, Any], **config: Any) -> Path:
    """A copy of a model with tensors added, or (None) left out, and keys of its config replaced."""
    tensors = {key: ("BF16", values) for key, values in read_floats(family / name).items()}
    kept = {key: value for key, value in {**tensors, **change}.items() if value is not None}
    stated = json.loads((family / name / "config.json").read_text()) | config
    return write_checkpoint(folder / f"{name}-changed", kept, stated)


UP = "model.layers.2.mlp.up_proj.weight"


def test_what_a_source_lacks_stops_the_run_or_is_skipped(family: Path, tmp_path: Path) -> None:
    """As for whole models: by name, unless the user says to merge without it."""
    odd = changed(family, tmp_path, "expert1", {UP: None})
    document = {
        "merge_method": "task_arithmetic",
        "base_model": str(family / "base"),
        "slices": [{"sources": [source(family, "base", 0, 2), source(family, str(odd), 1, 3, weight=0.5)]}],
    }
    with pytest.raises(IncompatibleModels, match=rf"expert1-changed: 1 of the base's .* missing: {UP}; --missing skip"):
        merge(family, tmp_path / "refused", document)
    result = merge(family, tmp_path / "out", document, rules=FamilyRules(missing=MissingRule.SKIP))
    assert any(f"{UP}; those are merged without it" in note for note in result["notes"])
    made, base = (read_tensors(path) for path in (tmp_path / "out", family / "base"))
    name = "model.layers.1.mlp.up_proj.weight"
    assert made[name] == base[name]


def test_what_a_source_has_beside_the_base_is_said(family: Path, tmp_path: Path) -> None:
    """Of the layers that the slices name, and of what is in no layer; not of layers that no slice names."""
    own = np.ones(8, np.float32)
    extra = {f"model.layers.{n}.self_attn.o_proj.bias": ("BF16", own) for n in range(4)} | {"model.own": ("BF16", own)}
    odd = changed(family, tmp_path, "expert1", extra)
    document = {
        "merge_method": "linear",
        "slices": [{"sources": [source(family, "base", 0, 2, weight=1), source(family, str(odd), 1, 3, weight=1)]}],
    }
    result = merge(family, tmp_path / "out", document)
    (note,) = [note for note in result["notes"] if "not in the base" in note]
    assert note.startswith("warning:")
    assert "3 tensors are not in the base and are not written: " in note
    for name in ("model.layers.1.self_attn.o_proj.bias", "model.layers.2.self_attn.o_proj.bias", "model.own"):
        assert name in note


def test_heads_tied_in_one_model_and_not_in_the_other(family: Path, tmp_path: Path) -> None:
    """The output ties as its first model does: a head is made from the embedding, or left out and said."""
    tied = changed(family, tmp_path, "expert1", {"lm_head.weight": None}, tie_word_embeddings=True)

    def stacked(first: str, last: str) -> dict[str, Any]:
        slices = [{"sources": [source(family, name, 0, 2)]} for name in (first, last)]
        return {"merge_method": "passthrough", "slices": slices}

    merge(family, tmp_path / "untied", stacked("base", str(tied)))
    made, embedding = read_tensors(tmp_path / "untied"), read_tensors(tied)["model.embed_tokens.weight"]
    assert made["lm_head.weight"] == embedding
    result = merge(family, tmp_path / "tied", stacked(str(tied), "base"))
    assert "lm_head.weight" not in read_tensors(tmp_path / "tied")
    assert any("not written: lm_head.weight" in note for note in result["notes"])


def test_a_model_without_what_the_first_needs_is_refused(family: Path, tmp_path: Path) -> None:
    """The final norm comes from the last slice; a model that has none cannot give it."""
    odd = changed(family, tmp_path, "expert1", {"model.norm.weight": None})
    slices = [{"sources": [source(family, "base", 0, 2)]}, {"sources": [source(family, str(odd), 0, 2)]}]
    with pytest.raises(IncompatibleModels, match=r"1 tensors are in no slice's model.*: model\.norm\.weight"):
        merge(family, tmp_path / "out", {"merge_method": "passthrough", "slices": slices})


def test_layers_the_config_does_not_count_are_said(family: Path, tmp_path: Path) -> None:
    """Prediction layers numbered after the last are not stacked, and not dropped in silence."""
    odd = changed(family, tmp_path, "expert1", {}, num_hidden_layers=3, layer_types=["x"] * 3)
    document = {"merge_method": "passthrough", "slices": [{"sources": [source(family, str(odd), 0, 3)]}]}
    result = merge(family, tmp_path / "out", document)
    assert any("layers the config does not count: not written" in note for note in result["notes"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 3
