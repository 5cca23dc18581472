"""Merges beside moving the same bytes, copying the base, and mergekit: seconds and ratios.

    benchmarks/run --shapes qwen3-0.6b --experts 4,8 --methods task_arithmetic,ties --budgets 100%,10% --runs 3

The cases of a round run one after another, and rounds follow each other, so that a slow minute of the machine hits
all of them; a ratio is taken within a round, between neighbours in time. benchmarks/README.md says what each case is.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import Job, Workplace, cases, jobs
from benchmarks.families import SHAPES, Family, weight_files
from benchmarks.machine import described, machine
from benchmarks.measure import CommandFailed
from benchmarks.plot import picture
from benchmarks.recipes import experts_of
from benchmarks.rounds import PROJECT, Measured, prepare, run_rounds
from benchmarks.summary import Row, summarise, table
from mergepipe.core.units import format_bytes


@dataclass(frozen=True, slots=True)
class Setting:
    """What holds for all cases of a round."""

    shape: str
    experts: int
    cold: bool

    @property
    def cache(self) -> str:
        return "cold" if self.cold else "warm"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured in every setting: the jobs, whether the index build too, how often."""

    jobs: tuple[Job, ...]
    build_index: bool
    runs: int
    peer_runs: int
    seed: int


@dataclass(frozen=True, slots=True)
class Programs:
    """The words that start mergepipe, and the folder of mergekit's environment, if there is one."""

    program: tuple[str, ...]
    peer: Path | None


def measure_setting(folder: Path, setting: Setting, plan: Plan, programs: Programs) -> dict[str, Any]:
    """Run all rounds of one setting and print its table; everything known of it, as plain values."""
    family = _family(folder, setting.shape, setting.experts, plan.seed)
    peer = None if programs.peer is None else (str(programs.peer / "bin" / "mergekit-yaml"), "--quiet")
    place = Workplace(folder, family, programs.program, peer)
    place.write_recipes([job.method for job in plan.jobs])
    prepare(place, plan.jobs, _to_stderr)
    ordered = cases(place, plan.jobs, plan.build_index)
    measured = run_rounds(place, ordered, plan.runs, plan.peer_runs, setting.cold, _to_stderr)
    rows = summarise(measured)
    total = sum(file.stat().st_size for file in family.weights)
    print(
        f"\n{setting.shape}, {setting.experts} experts, {format_bytes(total)} of weights, {setting.cache} cache, "
        f"{plan.runs} runs"
    )
    print("\n".join([*table(rows), *_doubts(measured, setting.cold, total)]))
    return {
        "shape": setting.shape, "experts": setting.experts, "cache": setting.cache, "input_bytes": total,
        "model_bytes": sum(file.stat().st_size for file in weight_files(family.base)),
        "rows": [_row_object(row) for row in rows],
        "measured": [_as_object(each) for each in measured],
    }  # fmt: skip


def _family(folder: Path, shape: str, experts: int, seed: int) -> Family:
    """The family, made where it is missing: in another process, so that this one stays small (see `measure`)."""
    target = folder / f"{shape}-seed{seed}"
    command = [sys.executable, "-m", "benchmarks.families", shape, str(target)]
    subprocess.run([*command, "--experts", str(experts), "--seed", str(seed)], stdout=2, check=True, cwd=PROJECT)
    return Family(target / "base", tuple(target / f"expert{number}" for number in range(1, experts + 1)))


def _row_object(row: Row) -> dict[str, Any]:
    return {**asdict(row), "role": row.role.value}


def _as_object(each: Measured) -> dict[str, Any]:
    figures = asdict(each.figures)
    del figures["stdout"]
    return {"case": each.name, "run": each.run, **figures, "resident_before": each.resident, "result": each.result}


def _doubts(measured: Sequence[Measured], cold: bool, total: int) -> list[str]:
    """What a reader of the table should know, if anything."""
    if cold:
        left = max(each.resident for each in measured)
        return [f"not cold: up to {format_bytes(left)} of the inputs stayed in the page cache"] if left else []
    least = min(each.resident for each in measured)
    return [f"not warm: only {format_bytes(least)} of the inputs were in the page cache"] if least < total else []


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")


# --- the command line -----------------------------------------------------------------------------


def _default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "mergepipe-benchmarks"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run",
        description="Merges beside the floor, cp and mergekit, as ratios. Lists are separated by commas.",
    )
    add = parser.add_argument
    add("--shapes", default="small", help=f"list of {', '.join(sorted(SHAPES))}")
    add("--experts", default="8", help="list of numbers of experts")
    add("--methods", default="task_arithmetic,ties", help="list; see benchmarks/recipes.py")
    add("--budgets", default="100%,10%", help="list of shares, sizes or numbers of blocks")
    add("--index", default="none", help="list of none, ready: whether merges at 100%% find one; those below always do")
    add("--workers", default="", help="list of numbers of computing threads (default: the program's)")
    add("--cold", action="store_true", help="drop inputs from the page cache before each case (default)")
    add("--warm", action="store_true", help="read inputs into the page cache before each case; with --cold, both")
    add("--runs", type=int, default=3)
    add("--peer", type=Path, default=os.environ.get("MERGEPIPE_PEER"), help="mergekit's environment (MERGEPIPE_PEER)")
    add("--peer-runs", type=int, help="rounds in which mergekit takes part (default: all; 0: none)")
    add("--skip-index-build", action="store_true", help="do not measure the making of the index")
    add("--seed", type=int, default=0, help="of the family")
    add("--folder", type=Path, default=_default_folder(), help="where families and results of cases are kept")
    add("--program", default=shlex.join([sys.executable, "-m", "mergepipe"]), help="the mergepipe to measure")
    add("--out", type=Path, help="write all figures as JSON, and beside it a picture of the same name (.svg)")
    return parser


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _plan(given: argparse.Namespace) -> Plan:
    states = {"none": False, "ready": True}
    if unknown := set(_listed(given.index)) - set(states):
        raise ValueError(f"--index: {unknown.pop()!r} is neither none nor ready")
    workers: list[int | None] = [*map(int, _listed(given.workers))] or [None]
    return Plan(
        jobs=tuple(
            jobs(_listed(given.methods), _listed(given.budgets), [states[s] for s in _listed(given.index)], workers)
        ),
        build_index=not given.skip_index_build,
        runs=given.runs,
        peer_runs=given.runs if given.peer_runs is None else given.peer_runs,
        seed=given.seed,
    )


def _settings(given: argparse.Namespace) -> list[Setting]:
    colds = [cold for cold, asked in ((True, given.cold or not given.warm), (False, given.warm)) if asked]
    if unknown := set(_listed(given.shapes)) - set(SHAPES):
        raise ValueError(f"--shapes: {unknown.pop()!r} is none of {', '.join(sorted(SHAPES))}")
    return [
        Setting(shape, experts, cold)
        for shape in _listed(given.shapes)
        for experts in map(int, _listed(given.experts))
        for cold in colds
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    folder: Path = given.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        plan, asked = _plan(given), _settings(given)
        for setting in asked:
            for job in plan.jobs:
                experts_of(job.method, setting.experts)  # complains before anything is written
        peer = given.peer if given.peer is not None and plan.peer_runs else None
        about = machine(folder, None if peer is None else peer / "bin" / "python")
        print(described(about))
        programs = Programs(tuple(shlex.split(given.program)), peer)
        settings = [measure_setting(folder, setting, plan, programs) for setting in asked]
    except (CommandFailed, OSError, ValueError, subprocess.CalledProcessError) as error:
        _to_stderr(f"error: {error}")
        return 1
    if given.out is not None:
        results = {"machine": about, "runs": plan.runs, "seed": plan.seed, "settings": settings}
        given.out.write_text(json.dumps(results, indent=1) + "\n")
        given.out.with_suffix(".svg").write_text(picture(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
