"""The cases of a benchmark: which commands run, on which files, in which order."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from benchmarks.families import Family, weight_files
from benchmarks.recipes import experts_of, recipe_text

COPY: Final = "cp of the base"
INDEX: Final = "build the index"
WAYS: Final = ("buffered", "direct")

_SEQUENTIAL: Final = (sys.executable, "-m", "benchmarks.sequential")


@dataclass(frozen=True, slots=True)
class Job:
    """One merge to measure. `indexed`: an index is there before; `workers` None leaves the program its default."""

    method: str
    budget: str
    indexed: bool
    workers: int | None = None

    @property
    def name(self) -> str:
        about = [self.method, self.budget]
        about += ["indexed"] if self.indexed and not is_capped(self.budget) else []
        about += [] if self.workers is None else [f"{self.workers} workers"]
        return " ".join(about)


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a benchmark keeps things, the family it merges (`family`, its first experts taken), and the programs.

    `program` is mergepipe, `peer` mergekit's command, each as the words that start it; `peer` is None without one.
    """

    folder: Path
    family: Family
    program: tuple[str, ...]
    peer: tuple[str, ...] | None = None

    @property
    def out(self) -> Path:
        """What a case writes; removed before and after each."""
        return self.folder / "out"

    @property
    def index(self) -> Path:
        """The index that capped merges find; made before the first round."""
        return self.folder / "index"

    @property
    def no_index(self) -> Path:
        """Where a case keeps an index of its own; removed before and after each."""
        return self.folder / "no-index"

    @property
    def inputs(self) -> tuple[Path, ...]:
        """All files a case may read: weights, then index files."""
        kept = sorted(path for path in self.index.rglob("*") if path.is_file()) if self.index.is_dir() else []
        return (*self.family.weights, *kept)

    def recipe(self, method: str) -> Path:
        return self.folder / "recipes" / f"{method}-{len(self.family.experts)}.yml"

    def write_recipes(self, methods: Sequence[str]) -> None:
        """One recipe a method. `ValueError` for a method that does not merge so many experts."""
        (self.folder / "recipes").mkdir(exist_ok=True)
        for method in methods:
            self.recipe(method).write_text(recipe_text(method, self.family))

    def clear(self) -> None:
        """Remove what the case before has left."""
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(self.no_index, ignore_errors=True)


# Given the results of the merges of this round, by case name: what to run.
Results = Mapping[str, Mapping[str, Any]]
Command = Callable[[Results], Sequence[str]]


class Role(str, Enum):
    """What a case is beside the others."""

    COPY = "copy"
    INDEX = "index"
    MERGE = "merge"
    FLOOR = "floor"
    PEER = "peer"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. A merge prints its result object, a floor its seconds of reading and writing.

    `job` is what a merge does.
    """

    name: str
    role: Role
    command: Command
    job: Job | None = None


def jobs(
    methods: Sequence[str], budgets: Sequence[str], indexed: Sequence[bool], workers: Sequence[int | None]
) -> list[Job]:
    """All combinations; a budget below the whole needs an index, so those have one whatever `indexed` says."""
    listed = [
        Job(method, budget, has_index or is_capped(budget), count)
        for method in methods
        for budget in budgets
        for has_index in indexed
        for count in workers
    ]
    return list(dict.fromkeys(listed))


def cases(place: Workplace, listed: Sequence[Job], build_index: bool) -> list[Case]:
    """One round, in order: cp, the index and reading all inputs, then each merge and its floors.

    mergekit, if there is one, comes after the first merge of its method.
    """
    ordered = [Case(COPY, Role.COPY, lambda _: _copy(place))]
    if build_index:
        ordered.append(Case(INDEX, Role.INDEX, lambda _: _build_index(place, listed[0].method)))
        everything = [word for file in place.family.weights for word in ("read", str(file), "-1")]
        ordered += [Case(floor_of(INDEX, way), Role.FLOOR, _always([*_SEQUENTIAL, way, *everything])) for way in WAYS]
    compared: set[str] = set()
    for job in listed:
        ordered.append(Case(job.name, Role.MERGE, _merge(place, job), job))
        ordered += [Case(floor_of(job.name, way), Role.FLOOR, _floor(place, job, way)) for way in WAYS]
        if place.peer is not None and job.method not in compared:
            compared.add(job.method)
            ordered.append(Case(peer_of(job.method), Role.PEER, _always(_peer(place, place.peer, job.method))))
    return ordered


def floor_of(name: str, way: str) -> str:
    """The name of the case that moves the same bytes as another does, in one way."""
    return f"floor of {name}, {way}"


def peer_of(method: str) -> str:
    """The name of the case in which mergekit merges the same recipe."""
    return f"mergekit {method}"


def is_capped(budget: str) -> bool:
    """Whether a budget is less than a full read; sizes and numbers of blocks are taken to be."""
    share = budget.strip().removesuffix("%")
    return share == budget.strip() or not share.replace(".", "", 1).isdecimal() or float(share) < 100


def prepare_words(place: Workplace, job: Job) -> Sequence[str]:
    """What is run once before the first round: plans the job, which leaves in the index whatever it needs of it."""
    words = [*place.program, "plan", str(place.recipe(job.method)), "--budget", job.budget, "--json"]
    return [*words, "--index", str(place.index if job.indexed else place.no_index)]


def _always(words: Sequence[str]) -> Command:
    return lambda _: words


def _copy(place: Workplace) -> Sequence[str]:
    # No reflinks: they copy nothing. sync FILE... is fsync of each.
    script = 'cp -R --reflink=never "$1" "$2" && sync "$2"/* "$2"'
    return ["sh", "-c", script, "cp", str(place.family.base), str(place.out)]


def _peer(place: Workplace, peer: Sequence[str], method: str) -> Sequence[str]:
    # Its output is made durable, as ours is.
    script = 'recipe=$1 out=$2; shift 2; "$@" "$recipe" "$out" && sync "$out"/* "$out"'
    return ["sh", "-c", script, "mergekit", str(place.recipe(method)), str(place.out), *peer]


def _build_index(place: Workplace, method: str) -> Sequence[str]:
    return [*place.program, "index", str(place.recipe(method)), "--index", str(place.no_index), "--json"]


def _merge(place: Workplace, job: Job) -> Command:
    words = [*place.program, "merge", str(place.recipe(job.method)), str(place.out), "--budget", job.budget, "--json"]
    words += ["--index", str(place.index if job.indexed else place.no_index)]
    words += [] if job.workers is None else ["--workers", str(job.workers)]
    return _always(words)


def _floor(place: Workplace, job: Job, way: str) -> Command:
    def command(results: Results) -> Sequence[str]:
        result = results[job.name]
        place.out.mkdir()
        experts = place.family.experts[: experts_of(job.method, len(place.family.experts))]
        each, rest = divmod(int(result["expert_bytes"]["planned"]), len(experts))
        models = [(place.family.base, int(result["base_bytes"]))]
        models += [(model, each + (number < rest)) for number, model in enumerate(experts)]
        words = [*_SEQUENTIAL, way]
        for model, count in models:
            words += [word for file, part in _first_bytes(model, count) for word in ("read", str(file), str(part))]
        return [*words, "write", str(place.out / "weights"), str(result["output_bytes"])]

    return command


def _first_bytes(model: Path, count: int) -> list[tuple[Path, int]]:
    """The first `count` bytes of a model's weights, as files and how much of each."""
    found = []
    for file in weight_files(model):
        part = min(count, file.stat().st_size)
        found.append((file, part))
        count -= part
    return found
