"""One recipe at several budgets: planned, or merged and measured."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mergepipe.api.merges import merge
from mergepipe.api.observer import SILENT, Observer
from mergepipe.api.options import IndexOptions, PlanOptions
from mergepipe.api.planned import plan, require_budgets
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.execute.distance import stored_distance
from mergepipe.plan.schedule import Limits
from mergepipe.store.meter import Meter


def sweep(
    config: Path,
    budgets: Sequence[str],
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> list[Mapping[str, Any]]:
    """Plan one recipe at several budgets; each entry is `plan`'s result object.

    A budget that cannot be met is refused before anything is read for the others.
    """
    require_budgets(config, budgets, options)
    return [plan(config, replace(options, budget=each), index, limits, observer).result for each in budgets]


def measured_sweep(
    config: Path,
    budgets: Sequence[str],
    folder: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> list[Mapping[str, Any]]:
    """Merge one recipe at several budgets in `folder` and at full read; each result gains `true_error`.

    A budget that cannot be met is refused before anything is read for the others.
    """
    require_budgets(config, budgets, options)
    full = folder / "full"
    merge(config, full, replace(options, budget=None), index, limits, observer=observer)
    results: list[Mapping[str, Any]] = []
    for number, budget in enumerate(budgets):
        out = folder / f"budget-{number}"
        result = merge(config, out, replace(options, budget=budget), index, limits, observer=observer)
        results.append({**result, "true_error": distance(out, full)})
        shutil.rmtree(out)
    return results


def distance(left: Path, right: Path) -> float:
    """‖θ_left − θ_right‖₂ over all float tensors of two models of the same tensors, as stored."""
    meter = Meter()
    return stored_distance(open_checkpoint(str(left), meter), open_checkpoint(str(right), meter), meter)
