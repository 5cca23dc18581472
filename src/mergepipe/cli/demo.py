"""`mergepipe demo`: a small real family, merged under budget, compared with the full read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mergepipe import api
from mergepipe.cli import options as opt
from mergepipe.cli.output import print_json, print_lines
from mergepipe.cli.progress import TerminalObserver
from mergepipe.demo.run import run_demo


def demo(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the family and the merges go.")] = Path(
        "mergepipe-demo"
    ),
    json: opt.Json = False,
) -> None:
    """Train a small family for a moment, merge it at several budgets, and measure what that costs."""
    with TerminalObserver() as observer:

        def merge(recipe: Path, out: Path, budget: str) -> Mapping[str, Any]:
            # The family is small: blocks of 64 KiB leave the planner something to choose.
            options = replace(api.PlanOptions(), budget=budget, block_bytes=64 << 10)
            index = api.IndexOptions(folder / "index")
            return api.merge(recipe, out, options, index, overwrite=True, observer=observer)

        report = run_demo(folder, merge, observer.note)
    print_json(report.as_object()) if json else print_lines(report.lines())
