"""Plans and manifests in files: saved, read back, and opened again on the models they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

from mergepipe.api.planned import Planned, schedule_of
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.errors import ManifestMismatch, SourceError, UsageError
from mergepipe.manifest.encode import MANIFEST_NAME, decode
from mergepipe.manifest.model import Manifest
from mergepipe.operators.registry import operator as find_operator
from mergepipe.plan.access import AccessPlan
from mergepipe.plan.encode import decode_plan, encode_plan, plan_from
from mergepipe.plan.schedule import Limits
from mergepipe.report.model import Seconds
from mergepipe.store.meter import Meter


def save_plan(planned: Planned, path: Path) -> None:
    """Write a plan as canonical JSON."""
    try:
        path.write_bytes(encode_plan(planned.plan, planned.recipe))
    except OSError as error:
        raise UsageError(f"{path}: the plan cannot be written: {error.strerror}") from error


def load_plan(path: Path, limits: Limits = Limits()) -> Planned:
    """Read a saved plan and open its inputs (headers only)."""
    access, recipe = decode_plan(_read(path), str(path))
    return reopen(access, recipe, limits)


def load_manifest(source: Path) -> Manifest:
    """The manifest of a merged model, from its folder or the manifest file itself."""
    path = source / MANIFEST_NAME if source.is_dir() else source
    return decode(_read(path), str(path))


def recorded_plan(source: Path) -> AccessPlan:
    """The access plan of a plan file, a merged model or a manifest."""
    path = source / MANIFEST_NAME if source.is_dir() else source
    if path.name != MANIFEST_NAME:
        return decode_plan(_read(path), str(path))[0]
    return plan_of_manifest(load_manifest(path), path)


def plan_of_manifest(recorded: Manifest, source: Path) -> AccessPlan:
    """The manifest's own plan, its inputs where that run found them. Raises `ManifestMismatch` if it was edited."""
    access = plan_from(recorded.identity.plan, str(source))
    if access.digest != recorded.identity.plan_digest:
        raise ManifestMismatch(
            f"{source}: the plan's digest is {access.digest}, the manifest says {recorded.identity.plan_digest}: "
            "the manifest was edited or damaged"
        )
    urls = [str(each["url"]) for each in recorded.run.inputs]
    inputs = tuple(replace(each, url=url) for each, url in zip(access.logical.inputs, urls, strict=True))
    tokenizer = replace(access.logical.tokenizer, url=recorded.run.tokenizer)
    return replace(access, logical=replace(access.logical, inputs=inputs, tokenizer=tokenizer))


def reopen(access: AccessPlan, recipe: str, limits: Limits) -> Planned:
    """Open a decided plan's inputs (headers only) and lay it out. Nothing is chosen anew."""
    started = perf_counter()
    meter = Meter()
    checkpoints = tuple(open_checkpoint(each.url, meter) for each in access.logical.inputs)
    checkpoints = tuple(
        replace(found, ref=each.ref) for found, each in zip(checkpoints, access.logical.inputs, strict=True)
    )
    operator = find_operator(access.logical.method)
    schedule = schedule_of(access, operator, checkpoints, limits)
    return Planned(access, operator, schedule, checkpoints, recipe, 0, (), Seconds(plan=perf_counter() - started))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
