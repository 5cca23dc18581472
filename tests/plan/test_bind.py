"""Recipe and family become a logical plan: roles, parameters, output dtypes, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.checkpoint.model import Checkpoint, TensorInfo, WeightFile
from mergepipe.core.dtypes import dtype
from mergepipe.core.extents import Extent
from mergepipe.errors import RecipeError
from mergepipe.operators.registry import operator
from mergepipe.plan.bind import bind, is_output_shard
from mergepipe.plan.compose import assign_roles, compose, input_models
from mergepipe.plan.family import FamilyRules, MissingRule
from mergepipe.plan.logical import LogicalPlan
from mergepipe.recipe.model import (
    Gradient,
    InputModel,
    ModelRef,
    Recipe,
)
from mergepipe.store.contract import Version

TASK, LINEAR, TIES = operator("task_arithmetic"), operator("linear"), operator("ties")
TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("BF16", (6, 4)),
    "model.layers.0.mlp.up_proj.weight": ("BF16", (8, 4)),
    "model.layers.1.mlp.up_proj.weight": ("BF16", (8, 4)),
    "model.layers.2.mlp.up_proj.weight": ("BF16", (8, 4)),
    "model.steps": ("I64", (3,)),
    "model.scale": ("F32", ()),
}


def entry(path: str, **parameters: Any) -> InputModel:
    """One model of a recipe."""
    return InputModel(ModelRef(path), parameters)


def model(ref: str, tensors: Mapping[str, tuple[str, tuple[int, ...]]] = TENSORS) -> Checkpoint:
    """A checkpoint without bytes."""
    infos = {}
    for name, (code, shape) in tensors.items():
        size = dtype(code).itemsize
        for extent in shape:
            size *= extent
        infos[name] = TensorInfo(name, code, shape, Extent("model.safetensors", 0, size))
    return Checkpoint(ref, f"/m/{ref}", infos, (WeightFile("model.safetensors", Version(9, 0, 0, 0), ref),), {})


def bound(recipe: Recipe, method: Any = TASK, shard_bytes: int = 10**9) -> LogicalPlan:
    """The logical plan of a recipe over the family."""
    roles = assign_roles(recipe, method)
    models = (model("base"), *(model(f"e{n}") for n in range(len(roles.experts))))
    return bind(recipe, compose(recipe, method, models, FamilyRules()), method, 7, shard_bytes)


def task(models: Sequence[InputModel], **more: Any) -> Recipe:
    """A task-arithmetic recipe."""
    return Recipe("task_arithmetic", tuple(models), base=ModelRef("base"), **more)


# --- roles ------------------------------------------------------------------------------------------


def test_a_base_is_the_base_and_all_models_are_experts() -> None:
    """In recipe order, one named twice is twice an expert."""
    models = (entry("a", weight=1), entry("b", weight=2), entry("a", weight=3))
    roles = assign_roles(task(models), TASK)
    assert (str(roles.base), roles.reference, roles.experts) == ("base", None, models)


def test_a_method_of_task_vectors_ignores_the_base_among_its_models() -> None:
    """Its delta is zero; however its path is written."""
    roles = assign_roles(task((entry("./base/", weight=1), entry("a", weight=2))), TASK)
    assert roles.reference is None
    assert [str(each.model) for each in roles.experts] == ["a"]


def test_for_other_methods_the_base_among_the_models_is_an_input() -> None:
    """It is read once, as base, and keeps its own parameters; named again, it is one more model."""
    models = (entry("a", weight=2), entry("base", weight=1), entry("base", weight=4))
    roles = assign_roles(Recipe("linear", models, base=ModelRef("base")), LINEAR)
    assert roles.reference is models[1]
    assert roles.experts == (models[0], models[2])


def test_without_a_base_the_first_model_is_the_reference() -> None:
    """The others are experts."""
    models = (entry("a", weight=2), entry("b", weight=1))
    roles = assign_roles(Recipe("linear", models), LINEAR)
    assert (str(roles.base), roles.reference, roles.experts) == ("a", models[0], models[1:])


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe("linear", ()), "names no model"),
        (Recipe("linear", (InputModel(ModelRef("a", lora=ModelRef("l"))),)), "adapters"),
        (Recipe("task_arithmetic", (entry("a"),), base=ModelRef("base", revision="v2")), "revisions"),
    ],
)
def test_what_is_not_supported_yet_is_refused_by_its_key(recipe: Recipe, words: str) -> None:
    """The recipe language knows more than this version does."""
    with pytest.raises(RecipeError, match=words):
        input_models(recipe, TASK)


# --- parameters -------------------------------------------------------------------------------------


def test_every_parameter_has_a_value() -> None:
    """A model's own, else the recipe's, else the default."""
    recipe = task((entry("a", weight=0.5), entry("b")), parameters={"weight": 0.25, "lambda": 2.0})
    tensor = next(each for each in bound(recipe).tensors if each.experts)
    assert [dict(each.parameters)["weight"] for each in tensor.experts] == [0.5, 0.25]
    assert set(tensor.experts[0].parameters) == {p.name for p in TASK.parameters if p.per_model}
    assert set(tensor.parameters) == {p.name for p in TASK.parameters if not p.per_model}
    assert tensor.parameters["lambda"] == 2.0
    assert tensor.parameters["normalize"] is False


def test_a_parameter_without_a_value_names_model_and_tensor() -> None:
    """`weight` has no default."""
    with pytest.raises(RecipeError, match=r'^e1: "weight" has no value for tensor model\.embed_tokens'):
        bound(task((entry("a", weight=1.0), entry("b"))))


def test_gradients_follow_the_layers() -> None:
    """From the first layer to the last; what is in no layer takes the start."""
    plan = bound(task((entry("a", weight=Gradient((0.0, 1.0))),)))
    weights = {each.name: each.experts[0].parameters["weight"] for each in plan.tensors if each.experts}
    assert [weights[f"model.layers.{n}.mlp.up_proj.weight"] for n in range(3)] == [0.0, 0.5, 1.0]
    assert weights["model.embed_tokens.weight"] == 0.0


def test_the_reference_has_its_parameters() -> None:
    """Only where the base is an input of the merge."""
    linear = bound(Recipe("linear", (entry("a", weight=2.0), entry("b", weight=1.0))), LINEAR)
    assert all(dict(each.reference or {}) == {"weight": 2.0} for each in linear.tensors)
    assert all(each.reference is None for each in bound(task((entry("a", weight=1.0),))).tensors)


# --- tensors and files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "BF16"),
        ({"dtype": "F16"}, "F16"),
        ({"out_dtype": "F32"}, "F32"),
        ({"dtype": "F16", "out_dtype": "F32"}, "F32"),
    ],
)
def test_out_dtype_wins_over_dtype_and_copies_keep_theirs(given: dict[str, str], expected: str) -> None:
    """Without either, each tensor keeps the base's; buffers always do."""
    plan = bound(task((entry("a", weight=1.0),), **given))
    outs = {each.name: each.out_dtype for each in plan.tensors}
    assert outs["model.embed_tokens.weight"] == expected
    assert outs["model.steps"] == "I64"
    assert outs["model.scale"] == ("F32" if not given else expected)


def test_copied_tensors_have_no_experts() -> None:
    """Integer buffers are the base's."""
    plan = bound(task((entry("a", weight=1.0),)))
    assert {each.name for each in plan.tensors if not each.experts} == {"model.steps"}


def test_a_missing_part_is_left_out_and_keeps_the_others_numbers() -> None:
    """Experts are known by their place among the inputs."""
    name = "model.layers.1.mlp.up_proj.weight"
    less = {key: value for key, value in TENSORS.items() if key != name}
    rules = FamilyRules(missing=MissingRule.SKIP)
    recipe = task((entry("a", weight=1.0), entry("b", weight=2.0)))
    composition = compose(recipe, TASK, [model("base"), model("a", less), model("b")], rules)
    plan = bind(recipe, composition, TASK, 0, 10**9)
    inputs = {each.name: [expert.input for expert in each.experts] for each in plan.tensors}
    assert inputs[name] == [2]
    assert inputs["model.embed_tokens.weight"] == [1, 2]
    assert [(each.ref, each.position) for each in plan.inputs] == [("base", -1), ("a", 0), ("b", 1)]


def test_wide_tensors_come_first_so_that_all_are_aligned() -> None:
    """Within one item size the base's order stays."""
    plan = bound(task((entry("a", weight=1.0),)))
    sizes = [dtype(each.out_dtype).itemsize for each in plan.tensors]
    assert sizes == sorted(sizes, reverse=True)
    names = [each.name for each in plan.tensors if each.out_dtype == "BF16"]
    assert names == [name for name in TENSORS if name in names]


@given(st.integers(1, 400))
def test_files_hold_every_tensor_once_within_their_size(shard_bytes: int) -> None:
    """In order, no file above the limit unless it is one tensor, no file that could have taken the next tensor."""
    plan = bound(task((entry("a", weight=1.0),)), shard_bytes=shard_bytes)
    assert [n for file in plan.files for n in file.tensors] == list(range(len(plan.tensors)))
    sizes = [each.elements * dtype(each.out_dtype).itemsize for each in plan.tensors]
    totals = [sum(sizes[n] for n in file.tensors) for file in plan.files]
    assert all(total <= shard_bytes or len(file.tensors) == 1 for total, file in zip(totals, plan.files, strict=True))
    for total, after in zip(totals, plan.files[1:], strict=False):
        assert total + sizes[after.tensors[0]] > shard_bytes
    names = [file.name for file in plan.files]
    count = len(names)
    assert names == (
        ["model.safetensors"]
        if count == 1
        else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    )
    assert all(is_output_shard(name) for name in names)


@pytest.mark.parametrize(
    "name", ["config.json", "model-1-of-2.safetensors", "xmodel.safetensors", "model.safetensors.x"]
)
def test_other_names_are_no_output_shards(name: str) -> None:
    """What a run may clear away is only what a run could have written."""
    assert not is_output_shard(name)


def test_binding_is_pure() -> None:
    """Twice the same plan; it records method, seed and where inputs are."""
    recipe = task((entry("a", weight=1.0),))
    plan = bound(recipe)
    assert plan == bound(recipe)
    assert (plan.operator, plan.method, plan.seed) == ("task_arithmetic", "task_arithmetic@mergekit", 7)
    assert plan.inputs[1].source == "0:e0"
    assert plan.inputs[0].source == "base"
