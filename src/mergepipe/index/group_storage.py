"""Facts of several experts together on the shelf: one file for a base and its experts, in order.

docs/index.md describes the format. A fact is used only if headers and file versions are those the file records, or
if the digests of the tensors it was computed from were found again in the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.index.filing import (
    InputState,
    Unusable,
    array_digests,
    array_file,
    input_state,
    read_arrays,
    read_header,
    stem,
    write_whole,
)
from mergepipe.stats.contract import (
    GramNeed,
    GroupFact,
    GroupNeed,
    ImportanceNeed,
    OverlapNeed,
    VarianceMaskNeed,
    VectorGramNeed,
)

VERSION: Final = 1
_FORMAT: Final = "mergepipe-group"
_NEEDS: Final[Mapping[str, type[Any]]] = {
    each.__name__: each for each in (GramNeed, VectorGramNeed, VarianceMaskNeed, OverlapNeed, ImportanceNeed)
}
_KINDS: Final[Mapping[str, type[Any]]] = {"floats": np.float64, "integers": np.int64}
# A value that is a list of floats; one alone is of length −1.
_ALONE: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A base and experts in the order of a recipe."""

    base: Checkpoint
    experts: tuple[Checkpoint, ...]

    @property
    def models(self) -> tuple[Checkpoint, ...]:
        return self.base, *self.experts

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """What its file is found by: places and headers."""
        return tuple(input_state(model).identity for model in self.models)


@dataclass(frozen=True, slots=True)
class Question:
    """A need of a tensor of the base and one of each expert: name, and how many elements count."""

    base: str
    experts: tuple[tuple[str, int], ...]
    need: GroupNeed


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A fact's values, lists as arrays, and digests of the bytes they follow from: the base's tensor, the experts'."""

    values: Mapping[str, float | int | NDArray[np.float64]]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, fact: GroupFact, digests: tuple[str, ...]) -> Answer:
        """An answer that was found just now."""
        return cls({n: v if isinstance(v, int | float) else np.array(v, np.float64) for n, v in fact.items()}, digests)

    @property
    def fact(self) -> GroupFact:
        """The fact; lists are made of arrays only here, for they are several times as large."""
        return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in self.values.items()}


@dataclass(frozen=True, slots=True, eq=False)
class FoundGroup:
    """What the shelf knows of a group, the base first in `touched`; `note` says why a file could not be used."""

    answers: Mapping[Question, Answer]
    touched: tuple[bool, ...] = ()
    note: str = ""

    @property
    def fresh(self) -> bool:
        return not any(self.touched)


@dataclass(frozen=True, slots=True)
class StoredValue:
    """One number or list of a fact: which array it is in, and how many numbers the list has (−1: it is no list)."""

    name: str
    array: Literal["floats", "integers"]
    length: int


@dataclass(frozen=True, slots=True)
class StoredGroupFact:
    """One fact. `need` is the class name, `parameters` its fields; its numbers follow the fact's before."""

    base: str
    experts: tuple[tuple[str, int], ...]
    need: str
    parameters: dict[str, float | int] = field(hash=False)
    digests: tuple[str, ...]
    values: tuple[StoredValue, ...]


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """The JSON in a group's file. `arrays` holds a digest of each array's bytes."""

    format: str
    version: int
    base: InputState
    experts: tuple[InputState, ...]
    facts: tuple[StoredGroupFact, ...]
    arrays: dict[str, str] = field(hash=False)


def group_path(folder: Path, group: Group) -> Path:
    """The file of a group, existing or not."""
    return folder / f"{stem([VERSION, *group.identity])}.mpgroup.safetensors"


def find_group(folder: Path, group: Group) -> FoundGroup:
    """Look a group up; reads its file only."""
    path = group_path(folder, group)
    try:
        header, answers = _load(path, group)
    except FileNotFoundError:
        return FoundGroup({})
    except Unusable as reason:
        return FoundGroup({}, note=f"{path}: not used, built anew: {reason}")
    recorded = (header.base, *header.experts)
    states = [input_state(model) for model in group.models]
    return FoundGroup(answers, tuple(a.files != b.files for a, b in zip(recorded, states, strict=True)))


def put_group(folder: Path, group: Group, answers: Mapping[Question, Answer]) -> None:
    """Write (or write anew) the file of a group; the caller holds its lock. Raises `OutputError`."""
    parts: dict[str, list[NDArray[Any]]] = {name: [np.empty(0, kind)] for name, kind in _KINDS.items()}
    facts = tuple(_stored(question, answer, parts) for question, answer in answers.items())
    arrays = {name: np.concatenate(each) for name, each in parts.items()}
    base, *experts = (input_state(model) for model in group.models)
    header = GroupHeader(_FORMAT, VERSION, base, tuple(experts), facts, array_digests(arrays))
    write_whole(group_path(folder, group), array_file(header, arrays))


def _stored(question: Question, answer: Answer, parts: Mapping[str, list[NDArray[Any]]]) -> StoredGroupFact:
    """The fact's entry; its numbers are appended to `parts`."""
    values = []
    for name, value in answer.values.items():
        array: Literal["floats", "integers"] = "integers" if isinstance(value, int) else "floats"
        parts[array].append(np.array(value, _KINDS[array]).reshape(-1))
        values.append(StoredValue(name, array, value.size if isinstance(value, np.ndarray) else _ALONE))
    need = question.need
    return StoredGroupFact(
        base=question.base,
        experts=question.experts,
        need=type(need).__name__,
        parameters={each.name: getattr(need, each.name) for each in fields(need)},
        digests=answer.digests,
        values=tuple(values),
    )


def _load(path: Path, group: Group) -> tuple[GroupHeader, dict[Question, Answer]]:
    """Raises `Unusable` or `FileNotFoundError`."""
    header = read_header(path, _FORMAT, VERSION, GroupHeader)
    if tuple(state.identity for state in (header.base, *header.experts)) != group.identity:
        raise Unusable("it is of other models")
    if header.arrays.keys() != _KINDS.keys():
        raise Unusable("it does not have the arrays of a group's facts")
    arrays = read_arrays(path, {name: header.arrays[name] for name in _KINDS})
    for name, kind in _KINDS.items():
        held = [value for fact in header.facts for value in fact.values if value.array == name]
        if arrays[name].dtype != kind or arrays[name].shape != (sum(abs(value.length) for value in held),):
            raise Unusable(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
    taken = dict.fromkeys(_KINDS, 0)
    return header, dict(_answer(fact, arrays, taken) for fact in header.facts)


def _answer(
    stored: StoredGroupFact, arrays: Mapping[str, NDArray[Any]], taken: dict[str, int]
) -> tuple[Question, Answer]:
    """A question and its answer, whose numbers in each array follow those `taken` before."""
    values: dict[str, Any] = {}
    for value in stored.values:
        start = taken[value.array]
        taken[value.array] = stop = start + abs(value.length)
        numbers = arrays[value.array][start:stop]
        values[value.name] = numbers[0].item() if value.length == _ALONE else numbers
    try:
        need: GroupNeed = _NEEDS[stored.need](**stored.parameters)
    except (KeyError, TypeError) as error:
        raise Unusable(f"it answers a need this program does not know ({error})") from None
    return Question(stored.base, stored.experts, need), Answer(values, stored.digests)
