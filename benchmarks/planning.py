"""Planning at size: 8 B parameters × 32 experts, from headers and an index of made-up facts.

    python -m benchmarks.planning [--experts 32] [--methods task_arithmetic,ties] [--budgets 1%,10%,50%] [--runs 3]

Every plan is a fresh process, `mergepipe plan RECIPE --budget B -o FILE`: its start, opening 33 models, loading the
index, choosing, laying out and writing the plan are all in the figures. The targets are 2 s and 500 MiB.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.families import Shape
from benchmarks.hollow import LLAMA_8B, parameters_of, write_hollow_family, write_made_up_index
from benchmarks.machine import machine
from benchmarks.measure import CommandFailed, installed_environment, measure
from benchmarks.recipes import recipe_text
from benchmarks.rounds import PROJECT
from benchmarks.summary import aligned
from mergepipe.core.units import format_bytes

MOST_SECONDS: Final = 2.0
MOST_MEMORY: Final = 500 << 20


@dataclass(frozen=True, slots=True)
class Planning:
    """One plan, over all runs: median seconds of the process, of it looking up facts and planning; most memory."""

    method: str
    budget: str
    wall: float
    cpu: float
    index_seconds: float
    plan_seconds: float
    peak_rss: int
    plan_bytes: int
    digest: str

    @property
    def met(self) -> bool:
        """Whether it took no more than the targets."""
        return self.wall <= MOST_SECONDS and self.peak_rss <= MOST_MEMORY


def measure_planning(
    folder: Path,
    shape: Shape,
    experts: int,
    methods: Sequence[str],
    budgets: Sequence[str],
    runs: int,
    program: Sequence[str],
) -> tuple[int, list[Planning]]:
    """How many items (expert, block) there are to choose from, and what planning took.

    `folder` takes the hollow family; nothing in it is read but headers and index files.
    """
    family = write_hollow_family(folder, shape, experts)
    recipes = {method: folder / f"{method}.yml" for method in methods}
    for method, recipe in recipes.items():
        recipe.write_text(recipe_text(method, family))
    items = write_made_up_index(recipes[methods[0]], folder / "index")
    environment = installed_environment(folder / "compiled")
    plan = folder / "plan.json"
    found: list[Planning] = []
    for method in methods:
        for budget in budgets:
            words = [*program, "plan", str(recipes[method]), "--budget", budget, "-o", str(plan), "--json"]
            words += ["--index", str(folder / "index"), "--no-index-reads"]
            if not found:
                measure(words, PROJECT, environment)  # compiles the program
            each = [measure(words, PROJECT, environment) for _ in range(runs)]
            results: list[dict[str, Any]] = [json.loads(figures.stdout) for figures in each]
            found.append(
                Planning(
                    method=method,
                    budget=budget,
                    wall=median(figures.wall for figures in each),
                    cpu=median(figures.cpu for figures in each),
                    index_seconds=median(result["seconds"]["index"] for result in results),
                    plan_seconds=median(result["seconds"]["plan"] for result in results),
                    peak_rss=max(figures.peak_rss for figures in each),
                    plan_bytes=plan.stat().st_size,
                    digest=results[0]["plan_digest"],
                )
            )
    return items, found


def lines(found: Sequence[Planning]) -> list[str]:
    """The figures as a table."""
    heads = ("", "wall s", "CPU s", "of it facts", "of it plan", "peak RSS", "plan file", "")
    body = [
        (
            f"{each.method} {each.budget}",
            f"{each.wall:.2f}",
            f"{each.cpu:.2f}",
            f"{each.index_seconds:.2f}",
            f"{each.plan_seconds:.2f}",
            format_bytes(each.peak_rss),
            format_bytes(each.plan_bytes),
            "met" if each.met else "missed",
        )
        for each in found
    ]
    return aligned([heads, *body])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description="Planning at size.")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--methods", default="task_arithmetic,ties", help="comma-separated; of an index's facts only")
    parser.add_argument("--budgets", default="1%,10%,50%,30GB,4096blocks,100%", help="comma-separated")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--program", default=shlex.join([sys.executable, "-m", "mergepipe"]))
    parser.add_argument("--folder", type=Path, help="where the hollow family goes (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mergepipe-planning-") as temporary:
        folder = Path(temporary) if given.folder is None else given.folder.resolve()
        methods, budgets = given.methods.split(","), given.budgets.split(",")
        try:
            items, found = measure_planning(
                folder, LLAMA_8B, given.experts, methods, budgets, given.runs, shlex.split(given.program)
            )
        except (CommandFailed, OSError, ValueError) as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        about = machine(folder)
    print(f"{parameters_of(LLAMA_8B):,} parameters, {given.experts} experts, {items:,} blocks to choose from")
    print("\n".join(lines(found)))
    print(f"targets: {MOST_SECONDS} s, {format_bytes(MOST_MEMORY)}")
    if given.out is not None:
        results = {"machine": about, "items": items, "runs": given.runs, "rows": [asdict(each) for each in found]}
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
