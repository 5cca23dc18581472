"""Stacks of layers: which is the language model's, where gradients are read, what a stacked config says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.core.extents import Extent
from mergepipe.errors import IncompatibleModels
from mergepipe.plan.stacks import layer_position, require_text_stack, restacked_config, stacks_of, stated_layers


def model(names: Sequence[str], config: dict[str, Any] | None = None) -> Checkpoint:
    """A model of which only names and config matter."""
    tensors = {name: TensorInfo(name, "F32", (1,), Extent("model.safetensors", 0, 4)) for name in names}
    return Checkpoint("m", "/models/m", tensors, (), config or {})


def stack(prefix: str, layers: int) -> list[str]:
    """One tensor in each layer."""
    return [f"{prefix}.{layer}.mlp.up_proj.weight" for layer in range(layers)]


@pytest.mark.parametrize(
    ("names", "config", "text", "depth"),
    [
        (stack("model.layers", 3), {}, "model.layers", 3),
        (stack("h", 2), {"n_layer": 2}, "h", 2),
        ([*stack("model.layers", 2), *stack("visual.blocks", 5)], {}, "model.layers", 2),
        ([*stack("model.layers", 1), *stack("mtp.layers", 1)], {"num_hidden_layers": 1}, "model.layers", 1),
        # DeepSeek's prediction layers follow the others under the same name.
        (stack("model.layers", 5), {"num_hidden_layers": 4}, "model.layers", 4),
        ([*stack("encoder.layers", 2), *stack("decoder.layers", 3)], {"num_layers": 3}, "decoder.layers", 3),
        ([*stack("encoder.block", 2), *stack("decoder.block", 2)], {"num_layers": 2}, None, 0),
        (["model.embed_tokens.weight"], {}, None, 0),
        (stack("vision_tower.layers", 2), {}, None, 0),
    ],
)
def test_the_language_models_stack(names: list[str], config: dict[str, Any], text: str | None, depth: int) -> None:
    """Towers and prediction layers have stacks of their own; among equals the config's number decides, or nothing."""
    found = stacks_of(model(names, config))
    assert (found.text, found.depth) == (text, depth)
    if text is None:
        with pytest.raises(IncompatibleModels, match=r"m: slices need one stack of layers .*models:"):
            require_text_stack(model(names, config), found)
    else:
        require_text_stack(model(names, config), found)


def test_places_run_over_each_stack() -> None:
    """Every stack from 0 to 1, a single layer at the end, layers beyond the config's number as the last."""
    names = [*stack("model.layers", 4), *stack("vision.blocks", 5), *stack("mtp.layers", 1), "model.norm.weight"]
    stacks = stacks_of(model(names, {"num_hidden_layers": 3}))
    places = {name: stacks.place(name) for name in names}
    assert [places[name] for name in stack("model.layers", 4)] == [0.0, 0.5, 1.0, 1.0]
    assert [places[name] for name in stack("vision.blocks", 5)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [places[name] for name in stack("mtp.layers", 1)] == [1.0]
    assert places["model.norm.weight"] == 0.0
    assert [stacks.layer(name) for name in names] == [0, 1, 2, 3, *[None] * 7]
    assert layer_position(0, 1) == 1.0


@pytest.mark.parametrize(
    ("name", "follows"),
    [
        ("model.language_model.norm.weight", True),
        ("lm_head.weight", True),
        ("mtp.fc.weight", True),
        ("mtp.layers.0.input_layernorm.weight", True),
        ("model.language_model.embed_tokens.weight", False),
        ("model.language_model.word_embeddings_layernorm.weight", False),
        ("model.visual.merger.norm.weight", False),
        ("model.multi_modal_projector.mm_soft_emb_norm.weight", False),
        ("model.norm_elsewhere.norm.weight", False),
    ],
)
def test_what_follows_the_layers(name: str, follows: bool) -> None:
    """Final norm, head and prediction layers; no norm of a tower, projector or embedding."""
    stacks = stacks_of(model([*stack("model.language_model.layers", 2), name]))
    assert stacks.follows(name, (1,), {}) is follows


A: dict[str, Any] = {
    "num_hidden_layers": 3, "layer_types": ["a0", "a1", "a2"], "mlp_only_layers": [0], "moe_layers": [0, 1, 2],
    "hybrid_override_pattern": "M*E", "first_k_dense_replace": 1, "architectures": ["x", "y", "z"], "depths": [1, 2, 3],
}  # fmt: skip
B: dict[str, Any] = {
    "num_hidden_layers": 2, "layer_types": ["b0", "b1"], "mlp_only_layers": [1], "hybrid_override_pattern": "ab",
    "first_k_dense_replace": 0,
}  # fmt: skip


@pytest.mark.parametrize("nested", [False, True])
def test_a_config_is_stacked_as_its_layers_are(nested: bool) -> None:
    """Counts, lists and texts per layer, lists of numbers; other lists of that length are none of it."""
    donor = {"text_config": A, "vision_config": {"num_hidden_layers": 9}} if nested else A
    changed, unsaid = restacked_config(donor, [donor, B], [(0, 0), (0, 2), (1, 1), (0, 0)])
    assert changed == {
        "num_hidden_layers": 4,
        "layer_types": ["a0", "a2", "b1", "a0"],
        "mlp_only_layers": [0, 2, 3],
        "moe_layers": [0, 1, 3],
        "hybrid_override_pattern": "MEbM",
        "first_k_dense_replace": 1,
    }
    assert unsaid == ("first_k_dense_replace",)  # layer 3 is dense again


def test_what_a_config_cannot_say_is_named() -> None:
    """A model that lists nothing for its layers gives none for the list."""
    changed, unsaid = restacked_config(
        {"num_hidden_layers": 2, "layer_types": ["a", "b"]}, [A, {"num_hidden_layers": 2}], [(0, 0), (1, 1)]
    )
    assert changed == {"num_hidden_layers": 2}
    assert unsaid == ("layer_types",)
    same, unsaid = restacked_config({"first_k_dense_replace": 1}, [A], [(0, 0), (0, 0), (0, 2)])
    assert (same, unsaid) == ({"first_k_dense_replace": 2}, ())


def test_layers_a_config_states() -> None:
    """Under any of its names, in the language model's part."""
    assert stated_layers({"text_config": {"n_layer": 4}, "num_hidden_layers": 9}) == 4
    assert stated_layers({"num_layers": 7}) == 7
    assert stated_layers({"num_hidden_layers": "many"}) is None
