"""The cases of a benchmark: which commands run, on which files, in which order."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.families import Family, weight_files

COPY: Final = "cp of the base"
READ: Final = "read all inputs"
INDEX: Final = "build the index"

_SEQUENTIAL: Final = (sys.executable, "-m", "benchmarks.sequential")
_WITH_DENSITY: Final = frozenset(["ties", "dare_linear", "dare_ties"])


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a benchmark keeps things, and the program it measures (`mergepipe`, as the words that start it)."""

    folder: Path
    family: Family
    program: tuple[str, ...]

    @property
    def out(self) -> Path:
        """What a case writes; removed before and after each."""
        return self.folder / "out"

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def no_index(self) -> Path:
        """Where a merge keeps an index of its own; removed before and after each case."""
        return self.folder / "no-index"

    @property
    def inputs(self) -> tuple[Path, ...]:
        """All files a case may read: weights, then index files."""
        kept = sorted(path for path in self.index.rglob("*") if path.is_file()) if self.index.is_dir() else []
        return (*self.family.weights, *kept)

    def recipe(self, method: str) -> Path:
        return self.folder / "recipes" / f"{method}.yml"

    def clear(self) -> None:
        """Remove what the case before has left."""
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(self.no_index, ignore_errors=True)


# Given the results of the merges of this round, by case name: what to run.
Command = Callable[[Mapping[str, Mapping[str, Any]]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. `merge` is true where the command prints a merge's result object."""

    name: str
    command: Command
    merge: bool = False


def recipe_text(method: str, family: Family) -> str:
    """A recipe of one method with equal weights (their sum is 1), and density 0.5 where the method has one."""
    weight = 1 / (len(family.experts) + (method == "linear"))
    parameters = f"{{weight: {weight!r}, density: 0.5}}" if method in _WITH_DENSITY else f"{{weight: {weight!r}}}"
    models = (family.base, *family.experts) if method == "linear" else family.experts
    lines = [f"merge_method: {method}"]
    if method != "linear":
        lines.append(f"base_model: {family.base}")
    lines.append("models:")
    for model in models:
        lines += [f"  - model: {model}", f"    parameters: {parameters}"]
    lines.append("dtype: bfloat16")
    return "\n".join(lines) + "\n"


def write_recipes(place: Workplace, methods: Sequence[str]) -> None:
    """One recipe a method, in the workplace."""
    (place.folder / "recipes").mkdir(exist_ok=True)
    for method in methods:
        place.recipe(method).write_text(recipe_text(method, place.family))


def cases(place: Workplace, methods: Sequence[str], budgets: Sequence[str]) -> list[Case]:
    """One round, in order: the two yardsticks, the index, and each merge followed by its floor.

    A merge at 100 % starts without an index, as it needs none; the others find the one that was built before them.
    """
    capped = any(map(_is_capped, budgets))
    listed = [
        Case(COPY, lambda _: _copy(place)),
        Case(READ, lambda _: [*_SEQUENTIAL, *_words("read", [(file, -1) for file in place.family.weights])]),
    ]
    if capped:
        listed.append(Case(INDEX, lambda _: _build_index(place, methods[0])))
    for method in methods:
        for budget in budgets:
            name = f"{method} {budget}"
            listed.append(Case(name, _merge(place, method, budget), merge=True))
            listed.append(Case(floor_of(name), _floor(place, name)))
    return listed


def floor_of(merge: str) -> str:
    """The name of the case that moves the same bytes as a merge does."""
    return f"floor of {merge}"


def _is_capped(budget: str) -> bool:
    share = budget.strip().removesuffix("%")
    return share == budget.strip() or not share.replace(".", "", 1).isdecimal() or float(share) < 100


def _copy(place: Workplace) -> Sequence[str]:
    # No reflinks: they copy nothing. sync FILE... is fsync of each.
    script = 'cp -R --reflink=never "$1" "$2" && sync "$2"/* "$2"'
    return ["sh", "-c", script, "cp", str(place.family.base), str(place.out)]


def _build_index(place: Workplace, method: str) -> Sequence[str]:
    shutil.rmtree(place.index, ignore_errors=True)
    return [*place.program, "index", str(place.recipe(method)), "--index", str(place.index), "--json"]


def _merge(place: Workplace, method: str, budget: str) -> Command:
    index = place.index if _is_capped(budget) else place.no_index
    words = [*place.program, "merge", str(place.recipe(method)), str(place.out)]
    words += ["--budget", budget, "--index", str(index), "--json"]
    return lambda _: words


def _floor(place: Workplace, merge: str) -> Command:
    def command(results: Mapping[str, Mapping[str, Any]]) -> Sequence[str]:
        result = results[merge]
        place.out.mkdir()
        models = [(place.family.base, int(result["base_bytes"]))]
        each, rest = divmod(int(result["expert_bytes"]["planned"]), len(place.family.experts))
        models += [(model, each + (number < rest)) for number, model in enumerate(place.family.experts)]
        reads = [pair for model, count in models for pair in _first_bytes(model, count)]
        target = [(place.out / "weights", int(result["output_bytes"]))]
        return [*_SEQUENTIAL, *_words("read", reads), *_words("write", target)]

    return command


def _first_bytes(model: Path, count: int) -> list[tuple[Path, int]]:
    """The first `count` bytes of a model's weights, as files and how much of each."""
    found = []
    for file in weight_files(model):
        part = min(count, file.stat().st_size)
        found.append((file, part))
        count -= part
    return found


def _words(verb: str, pairs: Sequence[tuple[Path, int]]) -> list[str]:
    return [word for file, count in pairs for word in (verb, str(file), str(count))]
