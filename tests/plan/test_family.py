"""Alignment: every way in which base and experts differ is either reconciled by a stated rule, or said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mergepipe.checkpoint.model import Checkpoint, TensorInfo, WeightFile
from mergepipe.core.dtypes import dtype
from mergepipe.core.extents import Extent
from mergepipe.errors import IncompatibleModels
from mergepipe.plan.family import (
    Family,
    FamilyRules,
    Finding,
    MissingRule,
    Severity,
    VocabularyRule,
    align,
    require_aligned,
)
from mergepipe.store.contract import Version

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Q, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"
SHAPES: Mapping[str, tuple[int, ...]] = {EMBED: (10, 4), Q: (4, 4), NORM: (4,), HEAD: (10, 4)}
LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, "tie_word_embeddings": False}
COMMON = FamilyRules(vocabulary=VocabularyRule.COMMON)


def model(
    ref: str,
    change: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    code: str = "BF16",
    notes: tuple[str, ...] = (),
) -> Checkpoint:
    """The small model; `change` gives a tensor another shape or (dtype, shape), or None to leave it out."""
    tensors, at = {}, 0
    for name, wanted in {**SHAPES, **(change or {})}.items():
        if wanted is None:
            continue
        kind, shape = wanted if wanted and isinstance(wanted[0], str) else (code, wanted)
        size = dtype(kind).itemsize
        for extent in shape:
            size *= extent
        tensors[name] = TensorInfo(name, kind, tuple(shape), Extent("model.safetensors", at, at + size))
        at += size
    file = WeightFile("model.safetensors", Version(at, 0, 0, 0), "sha256:0")
    return Checkpoint(ref, f"/models/{ref}", tensors, (file,), LLAMA if config is None else config, notes)


def about(family: Family, severity: Severity) -> list[str]:
    """The findings of one severity, as text."""
    return [f"{each.model}: {each.message}" for each in family.findings if each.severity is severity]


def elements(family: Family, name: str) -> list[int | None]:
    """How many elements of a base tensor each expert covers."""
    tensor = next(each for each in family.tensors if each.base.name == name)
    return [None if part is None else part.elements for part in tensor.parts]


def test_models_that_agree_have_nothing_to_report() -> None:
    """Every tensor is merged whole; no finding at all."""
    family = align(model("base"), [model("a"), model("b")], FamilyRules())
    assert family.findings == ()
    assert [each.base.name for each in family.tensors] == list(SHAPES)
    assert all(elements(family, name) == [t.elements] * 2 for name, t in family.base.tensors.items())
    assert not any(each.copied for each in family.tensors)
    require_aligned(family)


def test_the_same_model_twice_is_two_experts() -> None:
    """Their weights add: nothing is said, both have every part."""
    same = model("a")
    family = align(model("base"), [same, same], FamilyRules())
    assert family.findings == ()
    assert elements(family, Q) == [16, 16]


def test_a_missing_tensor_stops_the_run() -> None:
    """It is named, with its model, the count and the rule that would let it pass."""
    family = align(model("base"), [model("a"), model("b", {Q: None})], FamilyRules())
    with pytest.raises(IncompatibleModels) as caught:
        require_aligned(family)
    message = str(caught.value)
    assert message == f"b: 1 of the base's 4 tensors are missing: {Q}; --missing skip merges those without it"
    assert elements(family, Q) == [16, None]


def test_a_missing_tensor_may_count_as_unchanged() -> None:
    """Under the rule it is a warning, and the expert has no part in that tensor."""
    rules = FamilyRules(missing=MissingRule.SKIP)
    family = align(model("base"), [model("a"), model("b", {Q: None})], rules)
    require_aligned(family)
    assert elements(family, Q) == [16, None]
    assert about(family, Severity.WARNING) == [
        f"b: 1 of the base's 4 tensors are missing: {Q}; those are merged without it"
    ]


def test_many_missing_tensors_are_counted_not_all_listed() -> None:
    """The first eight are named."""
    more = {f"model.layers.{n}.mlp.up_proj.weight": (4, 4) for n in range(20)}
    family = align(model("base", more), [model("a")], FamilyRules())
    (message,) = about(family, Severity.ERROR)
    assert message.startswith("a: 20 of the base's 24 tensors are missing")
    assert message.count("mlp.up_proj") == 8
    assert "and 12 more" in message


def test_an_extra_tensor_is_said_and_not_written() -> None:
    """The output has the base's tensors; the run goes on."""
    family = align(model("base"), [model("a", {"model.layers.0.self_attn.q_proj.bias": (4,)})], FamilyRules())
    require_aligned(family)
    assert [each.base.name for each in family.tensors] == list(SHAPES)
    assert about(family, Severity.WARNING) == [
        "a: 1 tensors are not in the base and are not written: model.layers.0.self_attn.q_proj.bias"
    ]


@pytest.mark.parametrize("flag", [{"tie_word_embeddings": True}, {}])
def test_a_head_tied_in_the_expert_takes_its_embedding(flag: Mapping[str, Any]) -> None:
    """The base has a head of its own: the expert's is its embedding, and that is said."""
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, **flag}
    family = align(model("base"), [model("a", {HEAD: None}, config)], FamilyRules())
    require_aligned(family)
    head = next(each for each in family.tensors if each.base.name == HEAD)
    assert head.parts[0] is not None
    assert head.parts[0].tensor.name == EMBED
    assert about(family, Severity.NOTE) == [f"a: {HEAD} is tied there: its embedding {EMBED} is merged into it"]


def test_a_head_that_is_missing_though_not_tied_is_missing() -> None:
    """An expert whose config says it has a head of its own, but has none, is incomplete."""
    family = align(model("base"), [model("a", {HEAD: None})], FamilyRules())
    assert [HEAD in message for message in about(family, Severity.ERROR)] == [True]
    assert elements(family, HEAD) == [None]


@pytest.mark.parametrize(
    ("base_flag", "expert_flag", "severity", "words"),
    [
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": True}, Severity.NOTE, "redundant"),
        ({}, {}, Severity.NOTE, "redundant"),  # both rely on the architecture's default, and the base ties
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, Severity.WARNING, "a head of its own"),
        ({"tie_word_embeddings": True}, {}, Severity.WARNING, "a head of its own"),
    ],
)
def test_a_head_that_only_the_expert_has(
    base_flag: Mapping[str, Any], expert_flag: Mapping[str, Any], severity: Severity, words: str
) -> None:
    """The base ties: a redundant head is a remark, one of the expert's own a warning; neither is written."""
    family = align(model("base", {HEAD: None}, base_flag), [model("a", None, expert_flag)], FamilyRules())
    require_aligned(family)
    (message,) = about(family, severity)
    assert HEAD in message
    assert words in message
    assert HEAD not in [each.base.name for each in family.tensors]


def test_derived_buffers_are_copied_or_ignored() -> None:
    """Rotary frequencies: the base's are copied whether the experts have them or not; an expert's extra is ignored."""
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    family = align(model("base", {name: ("F32", (2,))}), [model("a"), model("b", {name: ("F32", (8,))})], FamilyRules())
    require_aligned(family)
    tensor = next(each for each in family.tensors if each.base.name == name)
    assert tensor.copied
    assert tensor.parts == (None, None)
    assert about(family, Severity.NOTE) == [f"base: copied from the base, never merged: {name}"]
    family = align(model("base"), [model("a", {name: ("F32", (2,))})], FamilyRules())
    assert about(family, Severity.NOTE) == [f"a: derived buffers ignored: {name}"]
    assert about(family, Severity.WARNING) == []


def test_integer_buffers_are_copied_from_the_base() -> None:
    """Whatever an expert has in their place, or nothing at all, is no error: the base's are never merged."""
    name = "model.position_table"
    family = align(model("base", {name: ("I64", (6,))}), [model("a"), model("b", {name: ("I64", (9,))})], FamilyRules())
    require_aligned(family)
    assert next(each for each in family.tensors if each.base.name == name).copied
    assert elements(family, name) == [None, None]
    assert about(family, Severity.NOTE) == [f"base: copied from the base, never merged: {name}"]


@pytest.mark.parametrize("expert_has", [True, False])
def test_prefixes_are_reconciled(expert_has: bool) -> None:
    """`model.` before the names of one side only: one rule pairs all of them, and is said."""
    bare = {name: (None if name != HEAD else SHAPES[name]) for name in SHAPES}
    bare |= {name.removeprefix("model."): SHAPES[name] for name in SHAPES}
    plain, prefixed = model("plain", bare), model("prefixed")
    base, expert = (plain, prefixed) if expert_has else (prefixed, plain)
    family = align(base, [expert], FamilyRules())
    parts = {each.base.name: each.parts[0] for each in family.tensors}
    body = [name for name in base.tensors if name != HEAD]
    assert all(parts[name] is not None for name in body)
    assert any("names reconciled" in message and "'model.'" in message for message in about(family, Severity.NOTE))


def test_models_without_a_common_name_are_an_error_not_an_exception() -> None:
    """`check` can report on several experts, one of them of another family altogether."""
    stranger = model("stranger", {**dict.fromkeys(SHAPES), "transformer.x": (4,)})
    family = align(model("base"), [model("a"), stranger], FamilyRules())
    (message,) = about(family, Severity.ERROR)
    assert "stranger" in message
    assert "not of one family" in message
    assert elements(family, Q) == [16, None]


@pytest.mark.parametrize(("rows", "covered"), [(13, 40), (7, 28)])
def test_vocabulary_rows_that_differ_stop_or_are_cut(rows: int, covered: int) -> None:
    """More rows or fewer: an error with both figures; under `common` the first common rows are merged."""
    expert = model("a", {EMBED: (rows, 4), HEAD: (rows, 4)})
    stopped = align(model("base"), [expert], FamilyRules())
    assert about(stopped, Severity.ERROR) == [
        f"a: {name} has {rows} vocabulary rows, the base has 10; "
        "--vocab common merges the common rows and keeps the base's rest"
        for name in (EMBED, HEAD)
    ]
    assert elements(stopped, EMBED) == [None]
    common = align(model("base"), [expert, model("b")], COMMON)
    require_aligned(common)
    assert elements(common, EMBED) == [covered, 40]
    assert elements(common, HEAD) == [covered, 40]
    assert elements(common, Q) == [16, 16]
    assert about(common, Severity.WARNING)[0] == (
        f"a: {EMBED} has {rows} vocabulary rows, the base has 10: "
        f"the first {min(rows, 10)} are merged, the base's rest is kept"
    )


def test_a_tied_head_of_other_length_is_cut_too() -> None:
    """Embedding in place of the head, and fewer rows: both rules apply."""
    expert = model("a", {EMBED: (7, 4), HEAD: None}, {"tie_word_embeddings": True})
    family = align(model("base"), [expert], COMMON)
    require_aligned(family)
    assert elements(family, HEAD) == [28]


@pytest.mark.parametrize("change", [{Q: (4, 8)}, {Q: (16,)}, {EMBED: (10, 8)}, {EMBED: (40,)}, {Q: (8, 4)}])
def test_other_shapes_stop_the_run(change: Mapping[str, tuple[int, ...]]) -> None:
    """Rows of other length, other dimensions, or rows of a matrix that is no vocabulary: under any rule."""
    for rules in (FamilyRules(), COMMON):
        family = align(model("base"), [model("a", change)], rules)
        ((name, shape),) = change.items()
        (message,) = about(family, Severity.ERROR)
        assert message == f"a: {name} has shape {list(shape)}, the base's {name} has {list(SHAPES[name])}"


def test_dtypes_that_differ_are_said_once_and_allowed() -> None:
    """Inputs are read exactly as stored."""
    family = align(model("base"), [model("a", code="F32"), model("b", {NORM: ("F16", (4,))})], FamilyRules())
    require_aligned(family)
    assert about(family, Severity.NOTE) == [
        "a: 4 tensors are stored as F32 (base BF16); read exactly as stored",
        "b: 1 tensors are stored as F16 (base BF16); read exactly as stored",
    ]


def test_integers_in_place_of_floats_are_packed_weights() -> None:
    """They cannot be merged: an error that names both dtypes."""
    family = align(model("base"), [model("a", {Q: ("I32", (4, 4))})], FamilyRules())
    assert about(family, Severity.ERROR) == [f"a: {Q} is I32, the base's is BF16: a packed or converted tensor"]
    assert elements(family, Q) == [None]


def test_other_architectures_stop_the_run() -> None:
    """Equal shapes do not make one coordinate system; an unknown architecture is not held against a model."""
    other = model("a", None, {**LLAMA, "architectures": ["MistralForCausalLM"]})
    unknown = model("b", None, {"vocab_size": 10, "tie_word_embeddings": False})
    family = align(model("base"), [other, unknown], FamilyRules())
    (message,) = about(family, Severity.ERROR)
    assert message.startswith("a: config.json: architectures ['MistralForCausalLM'], the base has ['LlamaForCausalLM']")


@pytest.mark.parametrize(
    ("key", "mine", "theirs"),
    [("rope_theta", 10000.0, 1e6), ("rope_scaling", {"type": "linear"}, {"type": "yarn"}), ("rms_norm_eps", 1e-5, 1e-6),
     ("max_position_embeddings", 2048, 8192), ("hidden_act", "silu", "gelu"),
     ("num_attention_heads", 4, 8), ("num_key_value_heads", 2, 4), ("head_dim", 64, 32)],
)  # fmt: skip
def test_configs_that_differ_are_warned_of(key: str, mine: Any, theirs: Any) -> None:
    """Weights of models with another rotary base can be merged, but the user should know; so in a text part."""
    for wrap in (lambda part: part, lambda part: {"text_config": part}):
        family = align(
            model("base", None, {**LLAMA, **wrap({key: mine})}),
            [model("a", None, {**LLAMA, key: theirs})],
            FamilyRules(),
        )
        require_aligned(family)
        assert about(family, Severity.WARNING) == [
            f"a: config.json: {key} is {theirs}, the base has {mine}; the output keeps the base's"
        ]


def test_a_base_whose_embedding_contradicts_its_config_is_warned_of() -> None:
    """Rows added without telling config.json."""
    family = align(model("base", None, {**LLAMA, "vocab_size": 9}), [model("a")], FamilyRules())
    assert about(family, Severity.WARNING) == [f"base: {EMBED} has 10 rows, config.json says vocab_size 9"]


def test_remarks_of_opening_are_kept() -> None:
    """What was noticed while reading headers is part of the report."""
    family = align(model("base", notes=("x is ignored",)), [model("a", notes=("y is ignored",))], FamilyRules())
    assert about(family, Severity.NOTE) == ["base: x is ignored", "a: y is ignored"]


def test_every_error_is_in_the_message() -> None:
    """Two models, two faults, one message."""
    family = align(model("base"), [model("a", {Q: None}), model("b", {NORM: (5,)})], FamilyRules())
    with pytest.raises(IncompatibleModels, match=rf"a: .*{Q}.*; b: {NORM} has shape"):
        require_aligned(family)


def test_a_finding_reads_as_a_line() -> None:
    """Severity, model, message."""
    assert str(Finding(Severity.WARNING, "a", "odd")) == "warning: a: odd"


TOWER = {f"vision_tower.layers.{n}.mlp.fc1.weight": (4, 4) for n in range(3)}
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {"model_type": "llama", "vocab_size": 10, "tie_word_embeddings": False},
    "vision_config": {"model_type": "clip_vision_model"},
}


@pytest.mark.parametrize(
    ("plain", "text", "allowed"),
    [("llama", "llama", True), ("qwen3_moe", "qwen3_vl_moe_text", True), ("gemma3_text", "gemma3_text", True),
     ("llama", "mllama_text_model", False), ("mistral", "llama", False), (None, "llama", False)],
)  # fmt: skip
def test_a_language_model_meets_the_multimodal_model_it_is_in(plain: str | None, text: str, allowed: bool) -> None:
    """Architectures may differ if one is multimodal and its language model is of the other's type."""
    whole = {**LLAVA, "text_config": {"model_type": text, "vocab_size": 10, "tie_word_embeddings": False}}
    base, expert = model("base", TOWER, whole), model("a", None, {**LLAMA, "model_type": plain})
    for one, other in ((base, expert), (expert, base)):
        family = align(one, [other], FamilyRules())
        found = about(family, Severity.WARNING if allowed else Severity.ERROR)
        assert any("architectures" in message for message in found)
        assert not allowed or not family.errors


def test_a_part_the_expert_lacks_whole_is_the_bases() -> None:
    """A tower that is missing whole needs no rule; of one that is there in part, what is missing stops the run."""
    family = align(model("base", TOWER, LLAVA), [model("a", None, {})], FamilyRules())
    require_aligned(family)
    (message,) = about(family, Severity.WARNING)
    assert message.startswith("a: has nothing of the base's vision: 3 tensors are merged without it, vision_tower")
    maimed = {name: shape if "layers.0." in name else None for name, shape in TOWER.items()}
    family = align(model("base", TOWER, LLAVA), [model("a", maimed, {})], FamilyRules())
    assert [message[:43] for message in about(family, Severity.ERROR)] == [
        "a: 2 of the base's 7 tensors are missing: v"
    ]


FUSED = {"model.layers.0.mlp.experts.up_proj": (2, 4, 4)}
SINGLE = {f"model.layers.0.mlp.experts.{n}.up_proj.weight": (4, 4) for n in range(2)}


@pytest.mark.parametrize("rules", [FamilyRules(), FamilyRules(missing=MissingRule.SKIP)])
@pytest.mark.parametrize(("mine", "theirs"), [(FUSED, SINGLE), (SINGLE, FUSED)])
def test_layouts_of_experts_that_differ_are_an_error_of_their_own(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], rules: FamilyRules
) -> None:
    """It names both layouts; skipping what is missing is no way out, since it would skip every expert."""
    family = align(model("base", mine), [model("a", theirs)], rules)
    (message,) = about(family, Severity.ERROR)
    for word in ("fused", "one by one", *list(mine)[:1], *list(theirs)[:1]):
        assert word in message
    assert not about(family, Severity.WARNING)
