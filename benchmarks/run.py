"""Merges beside copying the base and reading all inputs, as ratios.

    benchmarks/run --shape qwen3-0.6b --experts 8 --methods task_arithmetic,ties --budgets 100%,10% --runs 3

The cases of a round run one after another, and rounds follow each other, so that a slow minute of the machine hits
all of them; a ratio is taken within a round, between neighbours in time. benchmarks/README.md says what each case is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.cases import COPY, READ, Case, Workplace, cases, floor_of, write_recipes
from benchmarks.families import SHAPES, Family
from benchmarks.measure import CommandFailed, Measurement, measure
from benchmarks.pagecache import make_cold, make_warm
from mergepipe.core.units import format_bytes

PROJECT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Measured:
    """One case in one round. `result` is a merge's result object, `resident` what was in the page cache before."""

    case: str
    run: int
    figures: Measurement
    resident: int
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Row:
    """One case over all rounds. Ratios are median, least and greatest of the rounds' ratios of wall time."""

    case: str
    wall: tuple[float, float, float]
    cpu: float
    to_copy: tuple[float, float, float]
    to_read: tuple[float, float, float]
    to_floor: tuple[float, float, float] | None
    peak_rss: int
    expert_bytes: int | None
    asked_bytes: int
    disk_bytes: int


def run_rounds(
    place: Workplace, listed: Sequence[Case], runs: int, cold: bool, say: Callable[[str], None]
) -> list[Measured]:
    """Measure every case `runs` times, in alternation. Before each, all inputs are made cold, or warm."""
    measured: list[Measured] = []
    for run in range(runs):
        results: dict[str, Mapping[str, Any]] = {}
        for case in listed:
            place.clear()
            command = case.command(results)
            resident = make_cold(place.inputs) if cold else make_warm(place.inputs)
            figures = measure(command, PROJECT)
            if case.merge:
                results[case.name] = json.loads(figures.stdout)
            measured.append(Measured(case.name, run, figures, resident, results.get(case.name)))
            say(f"round {run + 1}: {case.name}: {figures.wall:.2f} s")
        place.clear()
    return measured


def summarise(measured: Sequence[Measured]) -> list[Row]:
    """One row a case, in the order in which they ran."""
    wall = {(each.case, each.run): each.figures.wall for each in measured}

    def ratios(mine: Sequence[Measured], other: str) -> tuple[float, float, float]:
        return _spread([each.figures.wall / wall[other, each.run] for each in mine])

    rows = []
    for case in dict.fromkeys(each.case for each in measured):
        mine = [each for each in measured if each.case == case]
        last = mine[-1].result
        floor = floor_of(case)
        rows.append(
            Row(
                case=case,
                wall=_spread([each.figures.wall for each in mine]),
                cpu=median(each.figures.cpu for each in mine),
                to_copy=ratios(mine, COPY),
                to_read=ratios(mine, READ),
                to_floor=ratios(mine, floor) if (floor, mine[0].run) in wall else None,
                peak_rss=max(each.figures.peak_rss for each in mine),
                expert_bytes=None if last is None else last["expert_bytes"]["read"],
                asked_bytes=max(each.figures.asked_read for each in mine),
                disk_bytes=max(each.figures.disk_read for each in mine),
            )
        )
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of text."""
    heads = ("", "wall s", "× cp", "× read all", "× floor", "CPU s", "peak RSS", "expert bytes", "asked", "from disk")
    body = [
        (
            row.case,
            _shown(row.wall),
            _shown(row.to_copy),
            _shown(row.to_read),
            "" if row.to_floor is None else _shown(row.to_floor),
            f"{row.cpu:.2f}",
            format_bytes(row.peak_rss),
            "" if row.expert_bytes is None else format_bytes(row.expert_bytes),
            format_bytes(row.asked_bytes),
            format_bytes(row.disk_bytes),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *body, strict=True)]
    return [
        "  ".join(
            word.ljust(width) if at == 0 else word.rjust(width)
            for at, (word, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (heads, *body)
    ]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def _shown(spread: tuple[float, float, float]) -> str:
    middle, least, most = spread
    return f"{middle:.2f} ({least:.2f}–{most:.2f})"


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.system(),
        "kernel": platform.release(),
        "processor": platform.machine(),
        "python": platform.python_version(),
    }


def _family(folder: Path, shape: str, experts: int, seed: int) -> Family:
    """The family, made where it is missing: in another process, so that this one stays small (see `measure`)."""
    target = folder / f"{shape}-seed{seed}"
    command = [sys.executable, "-m", "benchmarks.families", shape, str(target)]
    subprocess.run([*command, "--experts", str(experts), "--seed", str(seed)], stdout=2, check=True, cwd=PROJECT)
    return Family(target / "base", tuple(target / f"expert{number}" for number in range(1, experts + 1)))


def _default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "mergepipe-benchmarks"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run", description="Merges beside cp and plain reading, as ratios."
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--methods", default="task_arithmetic,ties", help="comma-separated")
    parser.add_argument("--budgets", default="100%,10%", help="comma-separated")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the family")
    state = parser.add_mutually_exclusive_group()
    state.add_argument(
        "--cold",
        dest="cold",
        action="store_true",
        default=True,
        help="drop inputs from the page cache before each case (default)",
    )
    state.add_argument(
        "--warm", dest="cold", action="store_false", help="read inputs into the page cache before each case"
    )
    parser.add_argument(
        "--folder", type=Path, default=_default_folder(), help="where families and results of cases are kept"
    )
    parser.add_argument(
        "--program", default=shlex.join([sys.executable, "-m", "mergepipe"]), help="the mergepipe to measure"
    )
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = _parser().parse_args(arguments)
    methods, budgets = given.methods.split(","), given.budgets.split(",")
    folder: Path = given.folder.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        family = _family(folder, given.shape, given.experts, given.seed)
        place = Workplace(folder, family, tuple(shlex.split(given.program)))
        write_recipes(place, methods)
        measured = run_rounds(place, cases(place, methods, budgets), given.runs, given.cold, _to_stderr)
    except (CommandFailed, OSError, subprocess.CalledProcessError) as error:
        _to_stderr(f"error: {error}")
        return 1
    rows = summarise(measured)
    total = sum(file.stat().st_size for file in family.weights)
    state = "cold" if given.cold else "warm"
    print(f"{given.shape}, {given.experts} experts, {format_bytes(total)} of weights, {state} cache, {given.runs} runs")
    print("\n".join(table(rows)))
    print("\n".join(_doubts(measured, given.cold, total)))
    if given.out is not None:
        written = {
            "shape": given.shape, "experts": given.experts, "seed": given.seed, "cache": state, "runs": given.runs,
            "input_bytes": total, "machine": _machine(),
            "rows": [asdict(row) for row in rows],
            "measured": [_as_object(each) for each in measured],
        }  # fmt: skip
        given.out.write_text(json.dumps(written, indent=1) + "\n")
    return 0


def _as_object(each: Measured) -> dict[str, Any]:
    figures = asdict(each.figures)
    del figures["stdout"]
    return {"case": each.case, "run": each.run, **figures, "resident_before": each.resident, "result": each.result}


def _doubts(measured: Sequence[Measured], cold: bool, total: int) -> list[str]:
    """What a reader of the table should know, if anything."""
    if cold:
        left = max(each.resident for each in measured)
        return [f"not cold: up to {format_bytes(left)} of the inputs stayed in the page cache"] if left else []
    least = min(each.resident for each in measured)
    return [f"not warm: only {format_bytes(least)} of the inputs were in the page cache"] if least < total else []


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
