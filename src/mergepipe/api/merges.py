"""The verbs that make a model, from a recipe, a saved plan or a manifest, and the one that verifies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mergepipe.api.observer import SILENT, Observer
from mergepipe.api.options import IndexOptions, PlanOptions
from mergepipe.api.planned import Planned, plan_recipe
from mergepipe.api.recorded import load_manifest, load_plan, plan_of_manifest, reopen
from mergepipe.api.run import run
from mergepipe.errors import UsageError
from mergepipe.manifest.encode import MANIFEST_NAME
from mergepipe.plan.schedule import Limits
from mergepipe.publish.commit import check_output
from mergepipe.publish.verify import VerifyReport
from mergepipe.publish.verify import verify as verify_files
from mergepipe.recipe.parse import load_recipes
from mergepipe.recipe.stages import in_order, with_stages
from mergepipe.store.meter import Meter


def merge(
    config: Path,
    out: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    overwrite: bool = False,
    observer: Observer = SILENT,
    intermediate: Path | None = None,
) -> Mapping[str, Any]:
    """Merge a recipe into OUT under a budget; returns design §7's result object.

    A file of several recipes is made in the order they need each other: those with a `name:` into
    `intermediate` (default: OUT's name with `.stages`), the one without into OUT. The result then has
    their results as `stages`; a budget is a share and holds for each.
    """
    check_output(out, overwrite, ())
    *stages, last = in_order(load_recipes(config), str(config))
    if stages and options.budget is not None and not options.budget.strip().endswith("%"):
        raise UsageError(
            f"--budget: {options.budget!r} for {len(stages) + 1} recipes in one file; give a share, as 30%"
        )
    folder = out.with_name(f"{out.name}.stages") if intermediate is None else intermediate
    places: dict[str, Path] = {}
    made = []
    for recipe in stages:
        place = folder / str(recipe.name)
        planned = plan_recipe(with_stages(recipe, places), config.parent, options, index, limits, observer)
        made.append(_stage(planned, place, limits, overwrite, observer))
        places[str(recipe.name)] = place
    planned = plan_recipe(with_stages(last, places), config.parent, options, index, limits, observer)
    result = run(planned, out, limits, overwrite, observer, None)
    return {**result, "stages": made} if made else result


def _stage(planned: Planned, out: Path, limits: Limits, overwrite: bool, observer: Observer) -> Mapping[str, Any]:
    """Make an intermediate model, unless it is there already by the same plan from the same files."""
    if (out / MANIFEST_NAME).is_file():
        recorded = load_manifest(out)
        files = [each["files"] for each in recorded.run.inputs]
        same_files = files == [[asdict(file) for file in each.files] for each in planned.checkpoints]
        if recorded.identity.plan_digest == planned.plan.digest and same_files:
            observer.note(f"{out}: kept, it is the result of this plan already")
            return recorded.result
    return run(planned, out, limits, overwrite, observer, None)


def merge_planned(
    plan_file: Path, out: Path, limits: Limits = Limits(), overwrite: bool = False, observer: Observer = SILENT
) -> Mapping[str, Any]:
    """Execute a saved plan. Raises `ManifestMismatch` if an input's header is not the planned one."""
    return run(load_plan(plan_file, limits), out, limits, overwrite, observer, None)


def replay(
    source: Path, out: Path, limits: Limits = Limits(), overwrite: bool = False, observer: Observer = SILENT
) -> Mapping[str, Any]:
    """Merge again exactly as a manifest records (a merged model, or its manifest file), into OUT.

    Raises `ManifestMismatch` naming the input that changed since; OUT does not exist then.
    """
    recorded = load_manifest(source)
    access = plan_of_manifest(recorded, source)
    planned = reopen(access, recorded.identity.recipe, limits)
    return run(planned, out, limits, overwrite, observer, recorded)


def verify(out: Path) -> VerifyReport:
    """Hash every file of a merged model against its manifest."""
    return verify_files(out, Meter())
