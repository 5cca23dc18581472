"""Running the cases of a benchmark, round after round."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.cases import Case, Job, Role, Workplace, prepare_words
from benchmarks.measure import Measurement, installed_environment, measure
from benchmarks.pagecache import make_cold, make_warm

PROJECT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Measured:
    """One case in one round.

    `resident` is how many bytes of the inputs were in the page cache before. `result` is the result object of a
    merge, the seconds of reading and writing of a floor.
    """

    case: Case
    run: int
    figures: Measurement
    resident: int
    result: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        return self.case.name


def prepare(place: Workplace, listed: Sequence[Job], say: Callable[[str], None]) -> None:
    """Make the index that indexed jobs find, with all facts they need, and compile the program. Not measured."""
    if place.index.exists():
        shutil.rmtree(place.index)
    environment = installed_environment(place.folder / "compiled")
    asked = {(job.method, job.budget): job for job in listed if job.indexed} or {("", ""): listed[0]}
    for job in asked.values():
        say(f"preparing {job.name}")
        measure(prepare_words(place, job), PROJECT, environment)
    place.clear()


def run_rounds(
    place: Workplace,
    ordered: Sequence[Case],
    runs: int,
    peer_runs: int,
    cold: bool,
    say: Callable[[str], None],
) -> list[Measured]:
    """Measure every case `runs` times, in alternation, the peer's cases in the first `peer_runs` rounds only.

    Before each case all inputs are made cold, or warm; after it, what it wrote is removed.
    """
    environment = installed_environment(place.folder / "compiled")
    measured: list[Measured] = []
    for run in range(runs):
        results: dict[str, Mapping[str, Any]] = {}
        for case in ordered:
            if case.role is Role.PEER and run >= peer_runs:
                continue
            place.clear()
            command = case.command(results)
            resident = make_cold(place.inputs) if cold else make_warm(place.inputs)
            figures = measure(command, PROJECT, environment)
            if case.role in (Role.MERGE, Role.FLOOR):
                results[case.name] = json.loads(figures.stdout)
            measured.append(Measured(case, run, figures, resident, results.get(case.name)))
            say(f"round {run + 1}: {case.name}: {figures.wall:.2f} s")
        place.clear()
    return measured
