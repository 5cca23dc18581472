"""The logical plan: what each output tensor is. It knows no bytes, no blocks and no budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mergepipe.checkpoint.rows import RowMap
from mergepipe.sidecar.tokens import BASE_FILES, TokenizerFiles

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
    covers the first `elements` elements of the output tensor; beyond, its delta is zero. `position`
    is the expert's place among its fellows in the recipe: it keys random masks.
    """

    input: int
    name: str
    dtype: str
    elements: int
    parameters: Values = field(hash=False)
    position: int = 0


@dataclass(frozen=True, slots=True)
class Assembly:
    """How the inputs of an output tensor are put together from rows, place by place (the base first, then experts).

    `rows` is a position in `LogicalPlan.row_maps`, `stored` the dtypes the tensors are stored in (those of the
    `TensorMerge` and its experts are what they are presented in). `padding` holds each place's padding row as
    hexadecimal float64, little-endian: a fact, computed before the plan is made; empty where nothing is padded.
    """

    rows: int
    stored: tuple[str, ...]
    padding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorMerge:
    """One output tensor, made from tensor `base` of input `base_input` and from experts.

    `copied` tensors (buffers, integers) are the base's as they are; so is one without experts, unless
    its method does something to the base alone.

    `dtype` is how the base stores it, `out_dtype` how the output will. `row` is the length of the
    last dimension (1 for 0-d and 1-d), `row_multiple` how many rows belong together (a head).
    `reference` holds the base's own parameters where the base is an input of the merge. With `assembly`
    its inputs are presented with rows in the output's order, and read whole.
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
    base_input: int = 0
    copied: bool = False
    assembly: Assembly | None = None

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


# (input of the base tensor, input of the expert tensor): two models some of whose tensors meet.
PairKey = tuple[int, int]


def pair_keys(meetings: Iterable[PairKey], inputs: int) -> tuple[PairKey, ...]:
    """The pairs of a merge in their one order; a merge of whole models has one for every expert."""
    keys = set(meetings)
    if all(base == 0 for base, _ in keys):
        keys |= {(0, number) for number in range(1, inputs)}
    return tuple(sorted(keys))


@dataclass(frozen=True, slots=True)
class LogicalPlan:
    """A whole merge. `operator` is the registry name, `method` the full name with its variant.

    `config` holds what config.json must say otherwise than the base's (a frankenmerge's layer count). `row_maps`
    are those of assembled tensors; `tokenizer` says what the output's tokenizer files are.
    `notes` are the family report's remarks; they change nothing.
    """

    operator: str
    method: str
    seed: int
    inputs: tuple[Input, ...]
    tensors: tuple[TensorMerge, ...]
    files: tuple[OutputFile, ...]
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    row_maps: tuple[RowMap, ...] = ()
    tokenizer: TokenizerFiles = BASE_FILES

    @property
    def pairs(self) -> tuple[PairKey, ...]:
        """Which models meet, in the order in which indices are kept."""
        return pair_keys(((t.base_input, e.input) for t in self.tensors for e in t.experts), len(self.inputs))
