"""A composed recipe → logical plan: parameters settled tensor by tensor, tensors put into output files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.names import parse_role
from mergepipe.checkpoint.rows import RowMap
from mergepipe.core.dtypes import dtype
from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter
from mergepipe.plan.compose import Composition, OutputTensor
from mergepipe.plan.logical import Assembly, ExpertTensor, Input, LogicalPlan, OutputFile, TensorMerge, Value
from mergepipe.recipe.model import Recipe, Settings
from mergepipe.recipe.settings import resolve_setting


def bind(recipe: Recipe, composition: Composition, operator: Operator, seed: int, shard_bytes: int) -> LogicalPlan:
    """Decide what every output tensor is; pure. `shard_bytes` caps an output file's tensor bytes."""
    row_maps = tuple(dict.fromkeys(tensor.rows for tensor in composition.tensors if tensor.rows is not None))
    tensors = [_bind_tensor(recipe, composition, operator, tensor, row_maps) for tensor in composition.tensors]
    # Wide dtypes first keeps every tensor aligned to its item size within the file.
    tensors.sort(key=lambda tensor: -dtype(tensor.out_dtype).itemsize)
    return LogicalPlan(
        operator=operator.name,
        method=operator.version,
        seed=seed,
        inputs=tuple(_input(number, model) for number, model in enumerate(composition.models)),
        tensors=tuple(tensors),
        files=_output_files(tensors, shard_bytes),
        config=composition.config,
        notes=tuple(str(finding) for finding in composition.findings),
        row_maps=row_maps,
        tokenizer=composition.tokenizer,
    )


def _input(number: int, model: Checkpoint) -> Input:
    return Input(model.ref, model.url, number - 1, model.header_digest)


def _bind_tensor(
    recipe: Recipe,
    composition: Composition,
    operator: Operator,
    tensor: OutputTensor,
    row_maps: Sequence[RowMap],
) -> TensorMerge:
    base = tensor.base
    role = parse_role(tensor.name, base.shape, composition.models[tensor.base_input].config)

    def settle(parameters: Sequence[Parameter], levels: Sequence[Settings], who: str) -> Mapping[str, Value]:
        values: dict[str, Value] = {}
        for parameter in parameters:
            try:
                values[parameter.name] = resolve_setting(parameter.name, levels, tensor.name, tensor.place, parameter)
            except RecipeError as error:
                raise RecipeError(f"{who}: {error}") from error
        return values

    per_model = [parameter for parameter in operator.parameters if parameter.per_model]
    globals_ = [parameter for parameter in operator.parameters if not parameter.per_model]
    experts = [
        ExpertTensor(
            input=term.input,
            name=term.tensor.name,
            dtype=term.tensor.dtype,
            elements=term.elements,
            parameters=settle(per_model, term.levels, composition.models[term.input].ref),
            position=term.position,
        )
        for term in tensor.terms
    ]
    reference = None
    if tensor.reference is not None:
        reference = settle(per_model, tensor.reference, composition.models[tensor.base_input].ref)
    wanted = recipe.out_dtype or recipe.dtype
    kept = tensor.stored[0] if tensor.stored else base.dtype
    return TensorMerge(
        name=tensor.name,
        shape=base.shape,
        dtype=base.dtype,
        out_dtype=kept if tensor.copied or wanted is None else wanted,
        base=base.name,
        experts=tuple(experts),
        parameters=settle(globals_, tensor.shared, "parameters"),
        reference=reference,
        row_multiple=tensor.row_multiple,
        role=" ".join(filter(None, (role.part, "" if role.layer is None else f"layer {role.layer}", role.component))),
        base_input=tensor.base_input,
        copied=tensor.copied,
        assembly=None if tensor.rows is None else Assembly(row_maps.index(tensor.rows), tensor.stored),
    )


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
