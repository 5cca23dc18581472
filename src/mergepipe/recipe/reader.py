"""YAML read as text with places: every value knows its file, line and key, and nothing is guessed.

Scalars stay the text that was written, so a model called `no`, `1e3` or `2026-01-01` keeps its name and the
reader of a value decides what it must be. Keys may not repeat; `<<` merges are followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import yaml

from mergepipe.core.suggest import did_you_mean
from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Parameter
from mergepipe.recipe.model import Scalar
from mergepipe.recipe.settings import coerce_scalar

_TAG: Final = "tag:yaml.org,2002:"
_KNOWN_TAGS: Final = frozenset(
    _TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "map", "seq")
)


@dataclass(frozen=True, slots=True)
class Place:
    """One value of a recipe: its YAML node, and where it stands (`path` is empty for the whole document)."""

    node: yaml.Node
    where: str
    path: str
    line: int

    def error(self, message: str) -> RecipeError:
        """The error to raise about this value: `file:line: key: message`."""
        return RecipeError(f"{self.where}:{self.line}: " + (f"{self.path}: " if self.path else "") + message)

    @property
    def is_null(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == _TAG + "null"

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and not self.is_null

    def text(self, expected: str = "text") -> str:
        """The text as written, which may not be empty."""
        self._check_tag()
        if not isinstance(self.node, yaml.ScalarNode) or self.is_null or not self.node.value:
            raise self.error(f"must be {expected}, found {self.found()}")
        return str(self.node.value)

    def scalar(self, parameter: Parameter) -> Scalar:
        """The value as `parameter` wants it."""
        text = self.text("a number" if parameter.kind in (int, float) else "a single value")
        try:
            return coerce_scalar(text, parameter)
        except RecipeError as error:
            raise self.error(str(error)) from None

    def mapping(self) -> dict[str, Place]:
        """The entries by key, in order. An entry's line is its key's. Raises where a key repeats."""
        self._check_tag()
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"must be a mapping (`key: value` lines), found {self.found()}")
        own: dict[str, Place] = {}
        merged: dict[str, Place] = {}
        for key, value in self.node.value:
            line = key.start_mark.line + 1
            if key.tag == _TAG + "merge":
                for name, place in self._merge(Place(value, self.where, self.path, line)).items():
                    merged.setdefault(name, place)
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise Place(key, self.where, self.path, line).error("a key must be plain text")
            name = str(key.value)
            if name in own:
                raise Place(key, self.where, self._below(name), line).error(
                    f"the key is given twice, in lines {own[name].line} and {line}: keep one"
                )
            own[name] = Place(value, self.where, self._below(name), line)
        return own | {name: place for name, place in merged.items() if name not in own}

    def items(self, expected: str = "a list") -> tuple[Place, ...]:
        """The items of a list, which may not be empty."""
        self._check_tag()
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"must be {expected}, found {self.found()}")
        if not self.node.value:
            raise self.error(f"must be {expected}, found an empty list")
        return tuple(
            Place(node, self.where, f"{self.path}[{number}]", node.start_mark.line + 1)
            for number, node in enumerate(self.node.value)
        )

    def found(self) -> str:
        """What stands here, for messages."""
        if self.is_null:
            return "nothing"
        if self.is_mapping:
            return "a mapping"
        if self.is_list:
            return "a list"
        return repr(self.node.value)

    def _below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _check_tag(self) -> None:
        if self.node.tag not in _KNOWN_TAGS:
            raise self.error(f"has the YAML tag {self.node.tag!r}, which recipes do not use: remove it")

    def _merge(self, source: Place) -> dict[str, Place]:
        if not source.is_list:
            return source.mapping()
        found: dict[str, Place] = {}
        for each in source.items():
            for name, place in each.mapping().items():
                found.setdefault(name, place)
        return found


def unknown_key(place: Place, name: str, known: Iterable[str]) -> RecipeError:
    """The error about a key that nothing reads; `place` is its value."""
    names = tuple(known)
    return place.error(f"unknown key{did_you_mean(name, names)} (known here: {', '.join(names)})")


def read_document(text: str, where: str) -> Place:
    """The one YAML document in `text`; `where` names it in errors. Raises `RecipeError`."""
    first, *others = read_documents(text, where)
    if others:
        raise RecipeError(
            f"{where}:{others[0].line}: a second YAML document begins here, and one recipe is wanted: "
            "of several recipes in one file, `merge` makes all"
        )
    return first


def read_documents(text: str, where: str) -> tuple[Place, ...]:
    """All YAML documents in `text`, at least one. Raises `RecipeError`."""
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if not _empty(node)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{where}:{mark.line + 1}" if mark else where
        problem = "; ".join(part for part in (error.context, error.problem) if part)
        raise RecipeError(f"{at}: not valid YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    if not nodes:
        raise RecipeError(f"{where}: holds no recipe: at least merge_method and models (or slices) are needed")
    return tuple(Place(node, where, "", node.start_mark.line + 1) for node in nodes)


def _empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"
