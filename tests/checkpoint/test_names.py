"""checkpoint/names.py: roles, head alignment, and names that differ by a prefix."""

from __future__ import annotations

from typing import Any

import pytest

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.names import (
    PrefixRule,
    Role,
    expert_layout,
    is_derived_buffer,
    layer_place,
    match_names,
    pair_names,
    parse_role,
    part_beside,
    prefix_between,
    text_part,
)
from mergepipe.core.extents import Extent
from mergepipe.errors import IncompatibleModels
from mergepipe.testing.checkpoints import llama_config, tiny_llama

CONFIG = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}

ROLES = [
    ("model.embed_tokens.weight", None, "embed"),
    ("transformer.wte.weight", None, "embed"),
    ("lm_head.weight", None, "lm_head"),
    ("output.weight", None, "lm_head"),
    ("model.norm.weight", None, "norm"),
    ("transformer.ln_f.weight", None, "norm"),
    ("model.layers.11.input_layernorm.weight", 11, "norm"),
    ("model.layers.3.self_attn.q_norm.weight", 3, "norm"),
    ("model.layers.3.pre_feedforward_layernorm.weight", 3, "norm"),
    ("model.layers.10.self_attn.q_proj.weight", 10, "attn.q"),
    ("model.layers.2.self_attn.k_proj.bias", 2, "attn.k"),
    ("layers.2.self_attn.v_proj.weight", 2, "attn.v"),
    ("model.layers.0.self_attn.o_proj.weight", 0, "attn.o"),
    ("model.layers.0.self_attn.dense.weight", 0, "attn.o"),
    ("layers.4.attention.wo.weight", 4, "attn.o"),
    ("model.layers.5.self_attn.qkv_proj.weight", 5, "attn.qkv"),
    ("transformer.h.6.attn.c_attn.weight", 6, "attn.qkv"),
    ("transformer.h.6.attn.c_proj.weight", 6, "attn.o"),
    ("transformer.h.6.mlp.c_proj.weight", 6, "mlp.down"),
    ("encoder.layer.7.attention.self.query.weight", 7, "attn.q"),
    ("encoder.layer.7.attention.output.dense.weight", 7, "attn.o"),
    ("encoder.layer.7.output.dense.weight", 7, "other"),
    ("model.layers.1.mlp.gate_proj.weight", 1, "mlp.gate"),
    ("model.layers.1.mlp.up_proj.weight", 1, "mlp.up"),
    ("model.layers.1.mlp.gate_up_proj.weight", 1, "mlp.gate_up"),
    ("model.layers.1.mlp.down_proj.weight", 1, "mlp.down"),
    ("model.layers.1.mlp.fc1.bias", 1, "mlp.up"),
    ("model.layers.9.block_sparse_moe.gate.weight", 9, "moe.router"),
    ("model.layers.9.block_sparse_moe.experts.7.w1.weight", 9, "moe.expert.7.gate"),
    ("model.layers.9.block_sparse_moe.experts.7.w2.weight", 9, "moe.expert.7.down"),
    ("model.layers.9.mlp.experts.12.up_proj.weight", 9, "moe.expert.12.up"),
    ("model.layers.9.mlp.experts.gate_up_proj", 9, "moe.expert.*.gate_up"),
    ("model.layers.9.mlp.experts.down_proj_bias", 9, "moe.expert.*.down"),
    ("model.layers.9.mlp.gate.weight", 9, "moe.router"),
    ("model.layers.9.mlp.router.weight", 9, "moe.router"),
    ("model.layers.9.mlp.shared_expert.down_proj.weight", 9, "mlp.down"),
    ("model.layers.0.self_attn.rotary_emb.inv_freq", 0, "buffer"),
    ("model.layers.0.linear_attn.A_log", 0, "other"),
    ("something.entirely.new", None, "other"),
    ("model.layers.9.mlp.gate.e_score_correction_bias", 9, "moe.router"),
    ("transformer.blocks.9.ffn.experts.mlp.w1", 9, "moe.expert.*.gate"),
    ("vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight", 3, "attn.q"),
    ("talker.model.embed_tokens.weight", None, "other"),
]

BESIDE = [
    ("vision_tower.vision_model.encoder.layers.3.self_attn.q_proj.weight", "vision"),
    ("model.visual.blocks.0.attn.qkv.weight", "vision"),
    ("visual.merger.ln_q.weight", "vision"),
    ("model.vision_embed_tokens.img_projection.0.weight", "vision"),
    ("model.embed_vision.embedding.weight", "vision"),
    ("audio_tower.layers.2.fc1.weight", "audio"),
    ("multi_modal_projector.linear_1.weight", "projector"),
    ("model.mm_projector.0.weight", "projector"),
    ("model.connector.modality_projection.proj.weight", "projector"),
    ("mtp.layers.0.mlp.up_proj.weight", "mtp"),
    ("language_model.model.layers.3.mlp.up_proj.weight", ""),
    ("model.layers.3.mlp.vision_mlp.up_proj.weight", ""),
    ("model.layers.3.cross_attn.q_proj.weight", ""),
    ("model.embed_tokens.weight", ""),
    ("model.division.weight", ""),
    ("lm_head.weight", ""),
]


@pytest.mark.parametrize(("name", "layer", "component"), ROLES, ids=[name for name, _, _ in ROLES])
def test_roles_of_the_usual_names(name: str, layer: int | None, component: str) -> None:
    """Layer and component of Llama, Qwen, Mistral, Mixtral, Gemma, Phi, GPT-2 and BERT names; `other` for the rest."""
    role = parse_role(name, (64, 64), {})
    assert (role.layer, role.component) == (layer, component)


@pytest.mark.parametrize(("name", "part"), BESIDE, ids=[name for name, _ in BESIDE])
def test_parts_beside_the_language_model(name: str, part: str) -> None:
    """Towers, projectors and prediction layers, by a word of their own; a module in a layer is that layer's."""
    assert part_beside(name) == part
    assert parse_role(name, (), {}).part == part


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.3.mlp.experts.7.up_proj.weight", ("model.layers", 3)),
        ("h.0.attn.c_attn.weight", ("h", 0)),
        ("vision_tower.encoder.layers.11.fc1.weight", ("vision_tower.encoder.layers", 11)),
        ("model.visual.deepstack_merger_list.1.norm.weight", None),
        ("model.norm.weight", None),
    ],
)
def test_a_layer_is_counted_in_its_stack(name: str, place: tuple[str, int] | None) -> None:
    """Equal numbers in two stacks are two layers."""
    assert layer_place(name) == place


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("model.layers.0.mlp.experts.gate_up_proj", "fused"),
        ("model.layers.0.mlp.experts.down_proj_bias", "fused"),
        ("model.layers.0.block_sparse_moe.experts.0.w1.weight", "one by one"),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", None),
        ("model.layers.0.mlp.gate.weight", None),
    ],
)
def test_layouts_of_experts(name: str, layout: str | None) -> None:
    """Only the routed experts are stored in one layout or the other."""
    assert expert_layout(name) == layout


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config", None])
def test_the_text_part_of_a_config(key: str | None) -> None:
    """A composite config keeps the language model's in a part of its own."""
    text = {"num_hidden_layers": 2}
    assert text_part({key: text, "vision_config": {"num_hidden_layers": 9}} if key else text) == text


def test_every_tensor_of_the_factory_has_a_role() -> None:
    """The tiny Llama holds nothing that is `other`, and its projections are aligned to its heads of 4 rows."""
    roles = {name: parse_role(name, values.shape, llama_config()) for name, values in tiny_llama(0).items()}
    assert "other" not in {role.component for role in roles.values()}
    assert roles["model.layers.1.self_attn.k_proj.weight"] == Role(1, "attn.k", 4)


@pytest.mark.parametrize(
    ("name", "shape", "config", "multiple"),
    [
        ("layers.0.self_attn.q_proj.weight", (64, 64), CONFIG, 16),
        ("layers.0.self_attn.k_proj.bias", (32,), CONFIG, 16),
        ("layers.0.self_attn.qkv_proj.weight", (128, 64), CONFIG, 16),
        ("layers.0.self_attn.q_proj.weight", (64, 64), {**CONFIG, "head_dim": 32}, 32),
        ("layers.0.self_attn.q_proj.weight", (64, 64), {**CONFIG, "head_dim": None}, 16),
        ("layers.0.self_attn.q_proj.weight", (64, 64), {"text_config": {"head_dim": 8}, **CONFIG}, 8),
        ("vision_tower.layers.0.self_attn.q_proj.weight", (64, 64), {"vision_config": {"head_dim": 4}, **CONFIG}, 4),
        ("layers.0.self_attn.q_proj.weight", (40, 64), CONFIG, 1),
        ("layers.0.self_attn.q_proj.weight", (0, 64), CONFIG, 1),
        ("layers.0.self_attn.q_proj.weight", (), CONFIG, 1),
        ("layers.0.self_attn.q_proj.weight", (64, 64), {}, 1),
        ("layers.0.self_attn.q_proj.weight", (64, 64), {"hidden_size": 64, "num_attention_heads": 0}, 1),
        ("layers.0.self_attn.q_proj.weight", (64, 64), {"head_dim": "16"}, 1),
        ("layers.0.self_attn.o_proj.weight", (64, 64), CONFIG, 1),
        ("layers.0.mlp.up_proj.weight", (64, 64), CONFIG, 1),
    ],
)
def test_rows_of_a_head_stay_together(name: str, shape: tuple[int, ...], config: dict[str, Any], multiple: int) -> None:
    """q, k and v have a head's rows as unit where the config gives one that divides the rows; all else has one row."""
    assert parse_role(name, shape, config).row_multiple == multiple


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq",
        "rotary_emb.cos_cached",
        "transformer.h.3.attn.bias",
        "h.3.attn.masked_bias",
        "transformer.h.0.attn.attention.bias",
        "gpt_neox.layers.5.attention.bias",
        "gpt_neox.layers.5.attention.masked_bias",
        "embeddings.position_ids",
        "vision_model.embeddings.position_ids",
    ],
)
def test_buffers_that_models_compute_themselves(name: str) -> None:
    """Rotary tables, causal masks and position ids are known as such."""
    assert is_derived_buffer(name)


@pytest.mark.parametrize(
    "name",
    [
        "transformer.h.3.attn.c_attn.bias",
        "model.layers.0.self_attn.q_proj.bias",
        "encoder.attn.bias_k",
        "gpt_neox.layers.5.attention.dense.bias",
        "embeddings.position_embeddings.weight",
        "my_inv_freq",
    ],
)
def test_parameters_are_no_buffers(name: str) -> None:
    """A learned bias is never taken for a mask."""
    assert not is_derived_buffer(name)


def checkpoint(ref: str, names: list[str]) -> Checkpoint:
    """A checkpoint of these tensors; only the names matter."""
    return Checkpoint(ref, "/" + ref, {n: TensorInfo(n, "F32", (1,), Extent("m", 0, 4)) for n in names}, (), {})


PLAIN = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("base", "expert", "rule"),
    [
        (PLAIN, PLAIN, None),
        (PLAIN, [name.removeprefix("model.") for name in PLAIN], PrefixRule("model.", "")),
        ([name.removeprefix("model.") for name in PLAIN[:3]], PLAIN[:3], PrefixRule("", "model.")),
        (PLAIN, ["base_model.model." + name for name in PLAIN], PrefixRule("", "base_model.model.")),
        (["base_model.model." + name for name in PLAIN], PLAIN, PrefixRule("base_model.model.", "")),
        (PLAIN, ["language_model." + name for name in PLAIN], PrefixRule("", "language_model.")),
        (
            PLAIN,
            [name.replace("model.", "model.language_model.", 1) for name in PLAIN],
            PrefixRule("model.", "model.language_model."),
        ),
    ],
)
def test_one_prefix_rule_reconciles(base: list[str], expert: list[str], rule: PrefixRule | None) -> None:
    """The rule is found, pairs every name, and is said in words; equal names need none."""
    assert prefix_between(base, expert) == rule
    match = match_names(checkpoint("base", base), checkpoint("expert", expert))
    assert list(match.mapping) == base
    assert set(match.mapping.values()) == set(expert)
    assert (match.missing, match.extra) == ((), ())
    assert match.rule == (None if rule is None else str(rule))
    assert rule is None or repr(rule.add or rule.strip) in str(match.rule)


def test_parts_have_prefixes_of_their_own() -> None:
    """What the first rule leaves over is paired by equal names and further rules; an ambiguous rest stays unpaired."""
    layers = [f"layers.{n}.x" for n in range(4)]
    base = [*(f"language_model.model.{name}" for name in layers), "language_model.lm_head", "vision.a", "same"]
    expert = [*(f"model.language_model.{name}" for name in layers), "lm_head", "model.vision.a", "same"]
    pairs, rules = pair_names(base, expert)
    assert pairs == dict(zip(base, expert, strict=True))
    assert list(pairs) == base
    assert [(rule.strip, rule.add) for rule in rules] == [
        ("language_model.model.", "model.language_model."), ("", "model."), ("language_model.", ""),
    ]  # fmt: skip
    assert match_names(checkpoint("a", base), checkpoint("b", expert)).rule == "; ".join(map(str, rules))
    pairs, _ = pair_names(["a", "b", "c", "odd"], ["a", "b", "c", "model.odd", "language_model.odd"])
    assert "odd" not in pairs


def test_missing_and_extra_are_reported_beside_a_rule() -> None:
    """A backbone without head, with a buffer more: both lists name what has no partner."""
    expert = [name.removeprefix("model.") for name in PLAIN[:3]] + ["rotary_emb.inv_freq"]
    match = match_names(checkpoint("base", PLAIN), checkpoint("expert", expert))
    assert match.missing == ("lm_head.weight",)
    assert match.extra == ("rotary_emb.inv_freq",)


def test_equal_names_win_over_a_rule_that_does_as_well() -> None:
    """An expert that holds both spellings is matched by the base's own; the rest is extra."""
    base = ["layers.0.w"]
    match = match_names(checkpoint("base", base), checkpoint("expert", ["layers.0.w", "model.layers.0.w"]))
    assert match.mapping == {"layers.0.w": "layers.0.w"}
    assert match.extra == ("model.layers.0.w",)


def test_no_expert_tensor_is_used_twice() -> None:
    """Two base names that a rule leads to one expert name do not share it."""
    base = ["model.x", "x", "model.y", "model.z"]
    match = match_names(checkpoint("base", base), checkpoint("expert", ["x", "y", "z"]))
    assert len(set(match.mapping.values())) == len(match.mapping) == 3
    assert len(match.missing) == 1


def test_ambiguous_rules_are_refused_with_both() -> None:
    """Two rules that do equally well, with different results: nobody can know."""
    expert = ["model.a.w", "language_model.a.w"]
    with pytest.raises(IncompatibleModels, match=r"expert against base: .*'model\.' .*; or .*'language_model\.'"):
        match_names(checkpoint("base", ["a.w"]), checkpoint("expert", expert))


def test_strangers_are_refused_with_names_of_both_sides() -> None:
    """Models without a common name are not of one family; an empty base has nothing to miss."""
    with pytest.raises(IncompatibleModels, match=r"lm_head.weight.*encoder.weight"):
        match_names(checkpoint("base", ["lm_head.weight"]), checkpoint("expert", ["encoder.weight"]))
    assert match_names(checkpoint("base", []), checkpoint("expert", ["x"])).extra == ("x",)
