"""Tokenizers as values: what a merge knows of its inputs' and what the output's files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token beside the tokenizer's own vocabulary, as tokenizer.json lists them under `added_tokens`."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False

    def entry(self, id_: int) -> dict[str, Any]:
        """The object that tokenizer.json has for it."""
        return {"id": id_, "content": self.content, **{flag: getattr(self, flag) for flag in _FLAGS}}


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """One model's tokenizer.

    `ids` is every token's id as transformers assigns it, in the order of ids. `added` are the tokens beside the
    vocabulary. `late` are those that only tokenizer_config.json names; they get the ids after all others. `kind`
    says how text becomes tokens (model type, pre-tokenizer and decoder): tokens of different kinds do not
    spell alike. `digest` is of the files it was read from.
    """

    ref: str
    ids: Mapping[str, int] = field(hash=False)
    added: Mapping[str, AddedToken] = field(hash=False)
    late: tuple[str, ...]
    kind: str
    digest: str


@dataclass(frozen=True, slots=True)
class Place:
    """A directory: what the user called it, and where it is."""

    ref: str
    url: str


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """What was read. `models` runs parallel to the inputs; None where one has no tokenizer.json.

    `other_forms` runs parallel to them: of one without, the file that has its vocabulary in another form, if there
    is one. `donor` is a tokenizer of a directory that is no input, `donor_config` what config.json says there.
    `generation` is the base's generation_config.json.
    """

    models: tuple[ModelTokenizer | None, ...]
    other_forms: tuple[str | None, ...]
    donor: ModelTokenizer | None = None
    donor_place: Place = Place("", "")
    generation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    donor_config: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token to add to tokenizer.json, with its id."""

    id: int
    token: AddedToken


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the output's tokenizer files are.

    `input` is the input they are copied from, None for the directory `url`, named `ref`. `added` go into
    tokenizer.json; `chat_template` replaces the template; `generation` replaces what generation_config.json
    says under the same keys (token ids, where the numbering is not the base's).
    """

    input: int | None = 0
    ref: str = ""
    url: str = ""
    added: tuple[NewToken, ...] = ()
    chat_template: str | None = None
    generation: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def plain(self) -> bool:
        """Whether the base's files are the output's as they are."""
        return self == BASE_FILES

    def without_place(self) -> TokenizerFiles:
        """The same but for where a directory is found, which is no part of a plan's identity."""
        return replace(self, url="")


BASE_FILES: Final = TokenizerFiles()
