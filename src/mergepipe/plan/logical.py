"""The logical plan: what each output tensor is. It knows no bytes, no blocks and no budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = float | int | bool | str
Values = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Input:
    """One checkpoint the merge reads: `inputs[0]` is the base (or reference), the others are experts.

    `position` counts the experts in recipe order from 0; the base has −1.
    """

    ref: str
    url: str
    position: int
    header_digest: str

    @property
    def source(self) -> str:
        """The name under which its bytes are metered: the position keeps models named twice apart."""
        return "base" if self.position < 0 else f"{self.position}:{self.ref}"


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """An expert's part in one output tensor.

    `input` is its place in `LogicalPlan.inputs`, `name` the tensor's name in that checkpoint. It
    covers the first `elements` elements of the output tensor; beyond, its delta is zero.
    """

    input: int
    name: str
    dtype: str
    elements: int
    parameters: Values = field(hash=False)


@dataclass(frozen=True, slots=True)
class TensorMerge:
    """One output tensor. Without experts it is the base's tensor, copied.

    `dtype` is how the base stores it, `out_dtype` how the output will. `row` is the length of the
    last dimension (1 for 0-d and 1-d), `row_multiple` how many rows belong together (a head).
    `reference` holds the base's own parameters where the base is an input of the merge.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    out_dtype: str
    base: str
    experts: tuple[ExpertTensor, ...]
    parameters: Values = field(hash=False)
    reference: Values | None = field(default=None, hash=False)
    row_multiple: int = 1
    role: str = "other"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def wide(self) -> bool:
        """Whether arithmetic is in float64: where any input is."""
        return self.dtype == "F64" or any(expert.dtype == "F64" for expert in self.experts)

    @property
    def row(self) -> int:
        return self.shape[-1] if len(self.shape) > 1 else 1


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One output shard: its name and its tensors, as positions in `LogicalPlan.tensors`, in order."""

    name: str
    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """A whole merge. `operator` is the registry name, `method` the full name with its variant.

    `notes` are the family report's remarks; they change nothing.
    """

    operator: str
    method: str
    seed: int
    inputs: tuple[Input, ...]
    tensors: tuple[TensorMerge, ...]
    files: tuple[OutputFile, ...]
    notes: tuple[str, ...] = ()
