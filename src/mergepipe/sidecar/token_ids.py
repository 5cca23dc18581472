"""Token ids in config.json and generation_config.json, in another tokenizer's numbering. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_SINGLE: Final = ("_token_id", "_token_index")
_LISTS: Final = frozenset(["suppress_tokens", "begin_suppress_tokens"])
_SEQUENCES: Final = frozenset(["bad_words_ids", "force_words_ids"])
_BY_NAME: Final = frozenset(["lang_to_id", "task_to_id"])
_FORCED: Final = "forced_decoder_ids"
_BIAS: Final = "sequence_bias"


@dataclass(frozen=True, slots=True)
class Renumbered:
    """A key's value in the new numbering (None: nothing of it is left), and the ids whose token is not there."""

    value: Any
    lost: tuple[int, ...]


def renumbered(key: str, value: Any, before: Mapping[int, str], after: Mapping[str, int]) -> Renumbered | None:
    """A config's `value` with its ids going with their tokens; None if `key` is none that holds token ids.

    The keys are those of transformers' GenerationConfig: one id or a list (`eos_token_id`, `suppress_tokens`),
    sequences of ids (`bad_words_ids`), pairs of position and id (`forced_decoder_ids`), of sequence and number
    (`sequence_bias`), ids by name (`lang_to_id`). Of a list, what holds a lost token is left out, the rest stays.
    A value of another form than its key's, and a negative id (it stands for no token), stay as they are.
    """
    numbering = _Numbering(before, after, [])
    if key.endswith(_SINGLE) or key in _LISTS:
        moved = [numbering.id(each) for each in value] if isinstance(value, list) else numbering.id(value)
    elif key in _SEQUENCES:
        moved = numbering.sequences(value)
    elif key in (_FORCED, _BIAS):
        if not isinstance(value, list):
            return Renumbered(value, ())
        moved = [numbering.pair(each, 0 if key == _BIAS else 1) for each in value]
    elif key in _BY_NAME and isinstance(value, Mapping):
        named = {name: numbering.id(each) for name, each in value.items()}
        return Renumbered({n: id_ for n, id_ in named.items() if id_ is not None}, tuple(numbering.lost))
    else:
        return None
    if isinstance(moved, list) and value:
        moved = [each for each in moved if each is not None] or None
    return Renumbered(moved, tuple(numbering.lost))


@dataclass(frozen=True, slots=True)
class _Numbering:
    before: Mapping[int, str]
    after: Mapping[str, int]
    lost: list[int]

    def id(self, value: Any) -> Any:
        """One id; None if its token is lost."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return value
        moved = self.after.get(self.before.get(value, ""))
        if moved is None:
            self.lost.append(value)
        return moved

    def sequences(self, value: Any) -> Any:
        """A sequence of ids, None if a token of it is lost; or a list of sequences without those."""
        if not isinstance(value, list):
            return self.id(value)
        moved = [self.sequences(each) for each in value]
        if any(isinstance(each, list) for each in value):
            return [each for each in moved if each is not None] or None
        return None if None in moved else moved

    def pair(self, value: Any, place: int) -> Any:
        """A pair with the id or sequence at `place`; None if that is lost."""
        if not isinstance(value, list) or len(value) != 2 or value[place] is None:
            return value
        moved = self.sequences(value[place])
        return None if moved is None else [*value[:place], moved, *value[place + 1 :]]
