"""Merge methods by name: the package's own, and those other packages offer by entry point.

A built-in method is any module of this room that holds `OPERATORS`, a tuple of operators; writing the
module is all it takes. Another package names its method in the entry-point group `mergepipe.operators`:
the entry's name is the method's, its object an operator or a tuple of that method's variants. An entry
is loaded only when a recipe asks for it, so a broken plug-in stops no other merge.

A method's first operator is its default; the others are variants, told apart by what follows the `@` of
their `version`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from mergepipe import operators as room
from mergepipe.core.suggest import did_you_mean
from mergepipe.errors import RecipeError, UsageError
from mergepipe.operators.contract import Operator

GROUP: Final = "mergepipe.operators"

# What mergekit 0.1.5 registers; each is a built-in method here (a test holds us to it).
MERGEKIT_METHODS: Final = (
    "arcee_fusion", "breadcrumbs", "breadcrumbs_ties", "dare_linear", "dare_ties", "della", "della_linear",
    "karcher", "linear", "model_stock", "multislerp", "nearswap", "nuslerp", "passthrough", "ram",
    "ramplus_tl", "sce", "slerp", "task_arithmetic", "ties",
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Every method a recipe may name, sorted; nothing of other packages is loaded."""
    return tuple(sorted({*_builtin(), *_plugins()}))


def variants(name: str) -> tuple[str, ...]:
    """The variants of one method, default first: `("mergekit", "paper")`. Raises as `operator` does."""
    return tuple(_variant(each) for each in _find(name))


def operator(name: str, variant: str | None = None) -> Operator:
    """The method of this name, or of this full name (`"ties@paper"`), in its default or the given variant.

    Raises `RecipeError` for a name or variant that does not exist (with the nearest one); `UsageError` where
    another package's entry point is at fault.
    """
    method, _, suffix = name.partition("@")
    if suffix and variant and suffix != variant:
        raise RecipeError(f'method "{name}" and variant "{variant}" contradict each other: give one of them')
    found = _find(method)
    wanted = variant or suffix
    if not wanted:
        return found[0]
    offered = {_variant(each): each for each in found}
    if wanted not in offered:
        raise RecipeError(
            f'{method} has no variant "{wanted}"{did_you_mean(wanted, offered)} (it has: {", ".join(offered)})'
        )
    return offered[wanted]


def _find(name: str) -> tuple[Operator, ...]:
    own, plugin = _builtin().get(name), _plugins().get(name)
    if own and plugin:
        raise UsageError(
            f'two merge methods are called "{name}": the built-in one and {_origin(plugin)}; uninstall one'
        )
    if own:
        return own
    if plugin:
        return _load(plugin)
    raise RecipeError(f'unknown method "{name}"{did_you_mean(name, names())} (supported: {", ".join(names())})')


@cache
def _builtin() -> Mapping[str, tuple[Operator, ...]]:
    found: dict[str, list[Operator]] = {}
    for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        if module.name == __name__:
            continue
        for each in getattr(importlib.import_module(module.name), "OPERATORS", ()):
            found.setdefault(each.name, []).append(each)
    return MappingProxyType({name: _checked(each, name, "the package") for name, each in found.items()})


@cache
def _plugins() -> Mapping[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise UsageError(
                f'two packages offer a merge method "{entry.name}": {_origin(other)} and {_origin(entry)}; '
                "uninstall one"
            )
    return MappingProxyType(found)


def _load(entry: EntryPoint) -> tuple[Operator, ...]:
    try:
        loaded = entry.load()
    except Exception as error:  # whatever another package's module raises while it is imported
        raise UsageError(f'merge method "{entry.name}" of {_origin(entry)} cannot be loaded: {error}') from error
    return _checked(loaded if isinstance(loaded, tuple | list) else (loaded,), entry.name, _origin(entry))


def _checked(found: Iterable[Operator], name: str, origin: str) -> tuple[Operator, ...]:
    """`found`, if these are distinct variants of the method `name`."""
    operators = tuple(found)
    versions = [getattr(each, "version", None) for each in operators]
    misnamed = [getattr(each, "name", repr(each)) for each in operators if getattr(each, "name", None) != name]
    if not operators or misnamed or None in versions or len(set(versions)) < len(versions):
        raise UsageError(
            f'merge method "{name}" of {origin} must be an operator of that name, or several with distinct '
            f"versions; found {misnamed or versions}"
        )
    return operators


def _variant(each: Operator) -> str:
    return each.version.partition("@")[2]


def _origin(entry: EntryPoint) -> str:
    package = entry.dist.name if entry.dist else "an unnamed package"
    return f"{package} ({entry.value})"
