"""Facts of several experts together on the shelf: one file for a base and its experts, in order.

docs/index.md describes the format. A fact is used only if headers and file versions are those the file records, or
if the digests of the tensors it was computed from were found again in the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    read_array,
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The fact, and digests of the bytes it was computed from: the base's tensor and the experts'."""

    fact: GroupFact
    digests: tuple[str, ...]


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
    numbers: dict[str, list[Any]] = {name: [] for name in _KINDS}
    facts = tuple(_stored(question, answer, numbers) for question, answer in answers.items())
    arrays = {name: np.array(each, _KINDS[name]) for name, each in numbers.items()}
    base, *experts = (input_state(model) for model in group.models)
    header = GroupHeader(_FORMAT, VERSION, base, tuple(experts), facts, array_digests(arrays))
    write_whole(group_path(folder, group), array_file(header, arrays))


def _stored(question: Question, answer: Answer, numbers: Mapping[str, list[Any]]) -> StoredGroupFact:
    values = []
    for name, value in answer.fact.items():
        array: Literal["floats", "integers"] = "integers" if isinstance(value, int) else "floats"
        alone = isinstance(value, int | float)
        found: Sequence[Any] = [value] if isinstance(value, int | float) else value
        numbers[array].extend(found)
        values.append(StoredValue(name, array, _ALONE if alone else len(found)))
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
    arrays = {name: read_array(path, name, header.arrays[name]) for name in _KINDS}
    for name, kind in _KINDS.items():
        held = [value for fact in header.facts for value in fact.values if value.array == name]
        if arrays[name].dtype != kind or arrays[name].shape != (sum(abs(value.length) for value in held),):
            raise Unusable(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
    lists = {name: _Numbers(array) for name, array in arrays.items()}
    return header, dict(_answer(fact, lists) for fact in header.facts)


class _Numbers:
    """An array's numbers, taken one run after another."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array, self._at = array, 0

    def take(self, count: int) -> list[Any]:
        start, self._at = self._at, self._at + count
        found: list[Any] = self._array[start : self._at].tolist()
        return found


def _answer(stored: StoredGroupFact, numbers: Mapping[str, _Numbers]) -> tuple[Question, Answer]:
    fact: dict[str, Any] = {}
    for value in stored.values:
        found = numbers[value.array].take(abs(value.length))
        fact[value.name] = found[0] if value.length == _ALONE else found
    try:
        need: GroupNeed = _NEEDS[stored.need](**stored.parameters)
    except (KeyError, TypeError) as error:
        raise Unusable(f"it answers a need this program does not know ({error})") from None
    return Question(stored.base, stored.experts, need), Answer(fact, stored.digests)
