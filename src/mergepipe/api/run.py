"""One run: a plan staged, executed and published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from mergepipe.api.evidence import NUMERICS, input_records, require_same_files, require_same_inputs, run_record
from mergepipe.api.observer import Observer
from mergepipe.api.planned import Planned
from mergepipe.api.sidecars import write_sidecars
from mergepipe.core.digest import digest_of
from mergepipe.execute.local import run_locally
from mergepipe.manifest.encode import MANIFEST_NAME
from mergepipe.manifest.model import Identity, Manifest, Receipt
from mergepipe.plan.cost import output_bytes
from mergepipe.plan.schedule import Limits
from mergepipe.publish.commit import check_output, commit
from mergepipe.publish.disk import LocalDisk
from mergepipe.publish.lock import output_lock
from mergepipe.publish.space import require_space
from mergepipe.publish.staging import Staging, open_staging
from mergepipe.report.model import merge_result, reads_of
from mergepipe.sidecar.files import sidecar_files
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store


def run(
    planned: Planned,
    out: Path,
    limits: Limits,
    overwrite: bool,
    observer: Observer,
    recorded: Manifest | None,
) -> Mapping[str, Any]:
    """Doors 8–10: stage, execute, publish. With `recorded`, the result must be what that manifest says."""
    started = datetime.now(UTC)
    disk = LocalDisk()
    plan = planned.result
    digest = plan["plan_digest"]  # all of the plan is hashed for it: once
    check_output(out, overwrite, [Path(each.url) for each in planned.checkpoints])
    with output_lock(out):
        check_output(out, overwrite, [Path(each.url) for each in planned.checkpoints])
        staging = open_staging(out, digest.removeprefix("sha256:"), _inputs_key(planned), disk)
        begun = perf_counter()
        receipts = _execute(planned, out, staging, limits, observer)
        executed = perf_counter()
        inputs = input_records(planned, receipts)
        if recorded is not None:
            require_same_inputs(recorded, inputs)
        sidecars = write_sidecars(planned, digest, staging, receipts)
        files = tuple(sorted((*(r.file for r in receipts), *sidecars), key=lambda record: record.name))
        if recorded is not None:
            require_same_files(recorded, files)
        identity = Identity(
            recipe=planned.recipe,
            method=planned.plan.logical.method,
            seed=planned.plan.logical.seed,
            plan_digest=digest,
            plan=planned.plan.identity,
            inputs=inputs,
            files=files,
            numerics=NUMERICS,
        )
        if recorded is not None:
            identity = replace(identity, inputs=recorded.identity.inputs)
        seconds = replace(planned.seconds, execute=executed - begun)
        result = merge_result(
            {**plan, "seconds": asdict(seconds)},
            str(out),
            str(out / MANIFEST_NAME),
            reads_of(receipts),
            _peak_rss(),
        )
        manifest = Manifest(identity, run_record(planned, started), result)
        for remark in commit(staging, out, manifest, overwrite, disk):
            observer.note(remark)
        seconds = replace(seconds, publish=perf_counter() - executed)
    return {**result, "seconds": asdict(seconds)}


def _execute(planned: Planned, out: Path, staging: Staging, limits: Limits, observer: Observer) -> tuple[Receipt, ...]:
    total = output_bytes(planned.plan.logical)
    base = planned.checkpoints[0]
    store = open_store(base.url, Meter(), Purpose.SIDECAR, "base")
    extra = sum(file.size for file in sidecar_files(store, base)) + (4 << 20)
    store.close()
    staged = sum(receipt.file.size for receipt in staging.finished.values())
    require_space(out.parent, total + extra, staged)
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        observer.progress("merge", done, total)

    return run_locally(
        planned.plan,
        planned.operator,
        planned.schedule,
        planned.checkpoints,
        limits,
        staging.path,
        staging.finished,
        staging.record,
        progress,
    )


def _inputs_key(planned: Planned) -> str:
    """Changes when any input file may have changed: a killed run's shards are then not used."""
    return digest_of([[each.url, each.files] for each in planned.checkpoints])


def _peak_rss() -> int:
    """The most memory this process has held, in bytes.

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
