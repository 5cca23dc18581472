"""Recipe + aligned family → logical plan: what every output tensor is, and in which file it goes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from mergepipe.checkpoint.names import parse_role
from mergepipe.core.dtypes import dtype
from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter, takes_base_as_input
from mergepipe.plan.family import AlignedTensor, Family
from mergepipe.plan.logical import ExpertTensor, Input, LogicalPlan, OutputFile, TensorMerge, Value
from mergepipe.recipe.model import InputModel, Recipe, Settings, TokenizerSpec
from mergepipe.recipe.settings import resolve_setting


@dataclass(frozen=True, slots=True)
class Roles:
    """Which model of a recipe is what: the base's own entry (if it is an input too) and the experts' entries."""

    base: str
    reference: InputModel | None
    experts: tuple[InputModel, ...]


def assign_roles(recipe: Recipe, operator: Operator) -> Roles:
    """Split a recipe's models into base and experts. Without `base_model` the first model is the reference.

    A model named both as base and in `models` is read once, as base: a method that measures the others
    from it has no use for its parameters, any other takes it as one more input. Raises `RecipeError` for what the
    recipe language knows and this program does not do yet.
    """
    _refuse_unsupported(recipe)
    if recipe.base is None:
        if not recipe.models:
            raise RecipeError("models: the recipe names no model")
        first, *rest = recipe.models
        return Roles(first.model.path, first, tuple(rest))
    base = PurePath(recipe.base.path)
    named = [entry for entry in recipe.models if PurePath(entry.model.path) == base]
    if not takes_base_as_input(operator):
        return Roles(recipe.base.path, None, tuple(entry for entry in recipe.models if entry not in named))
    reference = named[0] if named else None
    return Roles(recipe.base.path, reference, tuple(entry for entry in recipe.models if entry is not reference))


def _refuse_unsupported(recipe: Recipe) -> None:
    if recipe.slices:
        raise RecipeError("slices: slices are not supported yet; use models")
    if recipe.chat_template is not None:
        raise RecipeError("chat_template: not supported yet; the base's template is kept, so remove the key")
    if recipe.tokenizer is not None and recipe.tokenizer != TokenizerSpec():
        raise RecipeError("tokenizer: only the base's own tokenizer is supported yet; remove the key or set it to base")
    for ref in (recipe.base, *(entry.model for entry in recipe.models)):
        if ref is not None and ref.lora is not None:
            raise RecipeError(f"{ref}: adapters are not supported yet; merge the adapter into its model first")
        if ref is not None and ref.revision is not None:
            raise RecipeError(f"{ref}: revisions need a hub, which is not supported yet; give a local directory")


def bind(recipe: Recipe, roles: Roles, family: Family, operator: Operator, seed: int, shard_bytes: int) -> LogicalPlan:
    """Decide what every output tensor is; pure. `shard_bytes` caps an output file's tensor bytes."""
    layers = _layer_count(family)
    tensors = [_bind_tensor(recipe, roles, family, operator, aligned, layers) for aligned in family.tensors]
    # Wide dtypes first keeps every tensor aligned to its item size within the file.
    tensors.sort(key=lambda tensor: -dtype(tensor.out_dtype).itemsize)
    inputs = [Input(family.base.ref, family.base.url, -1, family.base.header_digest)]
    inputs += [Input(e.ref, e.url, position, e.header_digest) for position, e in enumerate(family.experts)]
    return LogicalPlan(
        operator=operator.name,
        method=operator.version,
        seed=seed,
        inputs=tuple(inputs),
        tensors=tuple(tensors),
        files=_output_files(tensors, shard_bytes),
        notes=tuple(str(finding) for finding in family.findings),
    )


def _bind_tensor(
    recipe: Recipe, roles: Roles, family: Family, operator: Operator, aligned: AlignedTensor, layers: int
) -> TensorMerge:
    base = aligned.base
    role = parse_role(base.name, base.shape, family.base.config)
    # As mergekit places a layer: the only layer of a model at the end, what is in no layer at the start.
    position = 0.0 if role.layer is None else role.layer / (layers - 1) if layers > 1 else 1.0

    def settle(parameters: Sequence[Parameter], levels: Sequence[Settings], who: str) -> Mapping[str, Value]:
        values: dict[str, Value] = {}
        for parameter in parameters:
            try:
                values[parameter.name] = resolve_setting(parameter.name, levels, base.name, position, parameter)
            except RecipeError as error:
                raise RecipeError(f"{who}: {error}") from error
        return values

    per_model = [parameter for parameter in operator.parameters if parameter.per_model]
    globals_ = [parameter for parameter in operator.parameters if not parameter.per_model]
    experts = []
    if not aligned.copied:
        for number, (entry, part) in enumerate(zip(roles.experts, aligned.parts, strict=True)):
            if part is None:
                continue
            values = settle(per_model, (entry.parameters, recipe.parameters), str(entry.model))
            experts.append(ExpertTensor(number + 1, part.tensor.name, part.tensor.dtype, part.elements, values))
    reference = None
    if roles.reference is not None:
        reference = settle(per_model, (roles.reference.parameters, recipe.parameters), str(roles.reference.model))
    wanted = recipe.out_dtype or recipe.dtype
    return TensorMerge(
        name=base.name,
        shape=base.shape,
        dtype=base.dtype,
        out_dtype=base.dtype if aligned.copied or wanted is None else wanted,
        base=base.name,
        experts=tuple(experts),
        parameters=settle(globals_, (recipe.parameters,), "parameters"),
        reference=reference,
        row_multiple=role.row_multiple,
        role=role.component if role.layer is None else f"layer {role.layer} {role.component}",
    )


def _layer_count(family: Family) -> int:
    layers = [parse_role(name, t.shape, family.base.config).layer for name, t in family.base.tensors.items()]
    return 1 + max((layer for layer in layers if layer is not None), default=-1)


def _output_files(tensors: Sequence[TensorMerge], shard_bytes: int) -> tuple[OutputFile, ...]:
    groups: list[list[int]] = []
    room = 0
    for number, tensor in enumerate(tensors):
        size = math.prod(tensor.shape) * dtype(tensor.out_dtype).itemsize
        if not groups or (size > room and groups[-1]):
            groups.append([])
            room = shard_bytes
        groups[-1].append(number)
        room -= size
    if len(groups) <= 1:
        return (OutputFile("model.safetensors", tuple(groups[0]) if groups else ()),)
    total = len(groups)
    return tuple(
        OutputFile(f"model-{number:05d}-of-{total:05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, start=1)
    )


_SHARD_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


def is_output_shard(name: str) -> bool:
    """Whether a file name is one this plan could give an output shard."""
    return _SHARD_NAME.fullmatch(name) is not None
