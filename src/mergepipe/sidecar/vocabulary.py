"""The output's vocabulary: its tokens, and which row of which model each of its rows is. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mergepipe.sidecar.tokens import AddedToken, ModelTokenizer

Ids = NDArray[np.int64]
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an expert's vocabulary differs from the base's: tokens with other ids, more tokens, fewer tokens."""

    moved: tuple[str, ...]
    added: tuple[str, ...]
    missing: tuple[str, ...]
    common: int

    @property
    def same(self) -> bool:
        """The same tokens, each with the same id."""
        return not (self.moved or self.added or self.missing)

    def __str__(self) -> str:
        if self.same:
            return f"the same {self.common:,} tokens, each with the same id"
        parts = []
        for tokens, what in (
            (self.moved, "have other ids"),
            (self.added, "are not in the base's"),
            (self.missing, "of the base's are missing"),
        ):
            if tokens:
                parts.append(f"{len(tokens):,} tokens {what} ({_some(tokens)})")
        return f"{'; '.join(parts)}; {self.common - len(self.moved):,} are the same"


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """What a recipe says of one token's embedding; `model` is an input's number. See the recipe's `TokenSource`."""

    kind: str
    model: int | None = None
    token: str | None = None
    token_id: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class OutputVocabulary:
    """The output's tokens and each input's rows for them.

    `ids` is token → row. `own[i][r]` is the row in input i of the token that row r is for, −1 where i's tokenizer
    lacks it; for a row that no token names it is r itself, where i names no token r either. `named[r]` says
    whether a token names row r. `added` are the tokens that the tokenizer's file gains, with their ids.
    `choices` are the recipe's, by token; the token of a `model_token` is settled to its id.
    """

    ids: Mapping[str, int] = field(hash=False)
    own: tuple[Ids, ...] = field(hash=False)
    named: NDArray[np.bool_] = field(hash=False)
    added: Mapping[str, tuple[int, AddedToken]] = field(hash=False)
    choices: Mapping[str, TokenChoice] = field(hash=False)


def compare(base: ModelTokenizer, other: ModelTokenizer) -> Comparison:
    """Hold one vocabulary against another, token by token."""
    if base.digest == other.digest:
        return Comparison((), (), (), len(base.ids))
    moved = tuple(t for t, id_ in base.ids.items() if other.ids.get(t, id_) != id_)
    added = tuple(token for token in other.ids if token not in base.ids)
    missing = tuple(token for token in base.ids if token not in other.ids)
    return Comparison(moved, added, missing, len(base.ids) - len(missing))


def additions(
    layout: ModelTokenizer, others: Sequence[ModelTokenizer], chosen: Sequence[str], united: bool
) -> tuple[AddedToken, ...]:
    """The tokens to add to `layout`'s file: those its config alone names, a union's others, the recipe's own.

    A union takes tokens model by model in the order of their ids, and registers as added also what another model
    does and `layout` holds as plain text. Of differing settings the first count.
    """
    found = {token: layout.added[token] for token in layout.late}
    for other in others if united else ():
        for token in other.ids:
            if token in found or token in layout.added:
                continue
            if token not in layout.ids or token in other.added:
                found[token] = other.added.get(token, AddedToken(token))
    for token in chosen:
        if token not in layout.ids and token not in found:
            found[token] = AddedToken(token)
    # What the config alone names is added by whoever loads it; only further tokens would take its ids.
    return tuple(found.values()) if len(found) > len(layout.late) else ()


def with_ids(layout: ModelTokenizer, added: Sequence[AddedToken]) -> dict[str, int]:
    """Every token's id once `added` are among `layout`'s: new ones come after all others, in their order."""
    ids = dict(layout.ids)
    following = 1 + max(ids.values(), default=-1)
    for token in added:
        if token.content not in ids:
            ids[token.content] = following
            following += 1
    return ids


def output_vocabulary(
    ids: Mapping[str, int],
    added: Sequence[AddedToken],
    tokenizers: Sequence[ModelTokenizer],
    choices: Mapping[str, TokenChoice],
    least: int,
) -> OutputVocabulary:
    """Number the output's rows: at least `least`, and one for every token, whether a model has a row for it or not."""
    count = max(least, 1 + max(ids.values(), default=-1))
    named = np.zeros(count, np.bool_)
    named[list(ids.values())] = True
    own = []
    for tokenizer in tokenizers:
        mine = np.full(count, -1, np.int64)
        nameless = np.flatnonzero(~named)
        used = set(tokenizer.ids.values())
        mine[nameless] = [-1 if int(row) in used else int(row) for row in nameless]
        for token, id_ in ids.items():
            mine[id_] = tokenizer.ids.get(token, -1)
        own.append(mine)
    by_token = {token.content: (ids[token.content], token) for token in added}
    return OutputVocabulary(ids, tuple(own), named, by_token, dict(choices))


def _some(tokens: Sequence[str]) -> str:
    shown = ", ".join(repr(token) for token in tokens[:_NAMED])
    return shown if len(tokens) <= _NAMED else f"{shown} and {len(tokens) - _NAMED:,} more"
