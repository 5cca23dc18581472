"""The recipe as a value, in mergekit's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Scalar: TypeAlias = float | int | bool | str


@dataclass(frozen=True, slots=True)
class Gradient:
    """Values over the layers of a slice: numbers run piecewise linearly, booleans and texts step."""

    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class FilteredValue:
    """`value` for tensors whose name contains `filter` (None: all others)."""

    filter: str | None
    value: Scalar | Gradient


@dataclass(frozen=True, slots=True)
class Filtered:
    """The first entry whose filter matches a tensor's name gives its value."""

    entries: tuple[FilteredValue, ...]


Setting: TypeAlias = Scalar | Gradient | Filtered
Settings: TypeAlias = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """`path@revision+lora@revision`, as the user wrote it, taken apart."""

    path: str
    revision: str | None = None
    lora: ModelRef | None = None

    def __str__(self) -> str:
        text = self.path + (f"@{self.revision}" if self.revision else "")
        return f"{text}+{self.lora}" if self.lora else text


@dataclass(frozen=True, slots=True)
class InputModel:
    """One entry of `models`: whole model, its own parameters."""

    model: ModelRef
    parameters: Settings = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SliceSource:
    """One entry of a slice's `sources`: layers `[start, stop)` of a model."""

    model: ModelRef
    layer_range: tuple[int, int] | None = None
    parameters: Settings = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class OutputSlice:
    """One run of output layers and what it is made from."""

    sources: tuple[SliceSource, ...]
    base_model: ModelRef | None = None
    parameters: Settings = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class TokenSource:
    """Where one token's embedding comes from.

    `kind` is `"model"` (the same token of `model`), `"model_token"` (its `token` or `token_id`), `"zero"`, or
    `"default"` (the tokenizer's own rule, never forced). `force` applies it to models that have the token as well.
    """

    kind: str
    model: ModelRef | None = None
    token: str | None = None
    token_id: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """`tokenizer:` or `tokenizer_source:`: `source` is "union", "base" or a model."""

    source: str | ModelRef = "base"
    tokens: Mapping[str, TokenSource] = field(default_factory=dict, hash=False)
    pad_to_multiple_of: int | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """One merge. `models` xor `slices` is non-empty. dtypes are safetensors codes (`"BF16"`).

    `dtype` and `out_dtype` name the output dtype only (`out_dtype` wins); inputs are never rounded.
    The base is an input of the merge exactly if it is among `models` or a slice's sources. `notes` are
    remarks for the user that change nothing. `text` is the source as the user gave it.
    """

    method: str
    models: tuple[InputModel, ...] = ()
    slices: tuple[OutputSlice, ...] = ()
    base: ModelRef | None = None
    variant: str | None = None
    parameters: Settings = field(default_factory=dict, hash=False)
    dtype: str | None = None
    out_dtype: str | None = None
    tokenizer: TokenizerSpec | None = None
    chat_template: str | None = None
    name: str | None = None
    seed: int | None = None
    text: str = ""
    notes: tuple[str, ...] = ()
