"""What a manifest records of a run, and whether a replay found the same."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version

from mergepipe.api.planned import Planned
from mergepipe.core.digest import digest_of
from mergepipe.errors import ManifestMismatch
from mergepipe.manifest.model import FileRecord, InputRecord, Manifest, Receipt, Run

NUMERICS: Mapping[str, str] = {
    "arithmetic": "float32 (float64 for float64 inputs), experts in recipe order, multiply and add apart",
    "rounding": "once, to nearest even",
    "randomness": "Philox 4x64 by element position, 16-bit lanes",
}


def input_records(planned: Planned, receipts: Sequence[Receipt]) -> tuple[InputRecord, ...]:
    """Each input's header and the bytes of it that the shards read, as digests; plan order, base first."""
    contents = planned.contents or (None,) * len(planned.checkpoints)
    return tuple(
        InputRecord(
            ref=each.ref,
            position=each.position,
            header_digest=each.header_digest,
            read_digest=digest_of([receipt.read_digests[str(number)] for receipt in receipts]),
            content_digest=content,
        )
        for number, (each, content) in enumerate(zip(planned.plan.logical.inputs, contents, strict=True))
    )


def run_record(planned: Planned, started: datetime) -> Run:
    """The part of a manifest that may differ between two runs of one plan: when, where and with what."""
    return Run(
        started=started.isoformat(timespec="seconds"),
        host=socket.gethostname(),
        versions={
            "mergepipe": version("mergepipe"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        inputs=tuple(
            {"ref": each.ref, "url": each.url, "files": [asdict(file) for file in each.files]}
            for each in planned.checkpoints
        ),
        tokenizer=planned.plan.logical.tokenizer.url,
    )


def require_same_inputs(recorded: Manifest, found: Sequence[InputRecord]) -> None:
    """Raises `ManifestMismatch` naming the first input whose read bytes are not the recorded ones."""
    for before, now in zip(recorded.identity.inputs, found, strict=True):
        if before.read_digest != now.read_digest:
            raise ManifestMismatch(
                f"{now.ref}: its bytes changed since the merge: the plan's reads now digest to {now.read_digest}, "
                f"the manifest says {before.read_digest}; restore the model or merge anew"
            )


def require_same_files(recorded: Manifest, found: Sequence[FileRecord]) -> None:
    """Raises `ManifestMismatch` naming the first output file that is not the recorded one."""
    before = {record.name: record for record in recorded.identity.files}
    now = {record.name: record for record in found}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise ManifestMismatch(
                f"{name}: the replayed file is {_described(now.get(name))}, the manifest says "
                f"{_described(before.get(name))}; the base's own {name} or the program changed since"
            )


def _described(record: FileRecord | None) -> str:
    return "absent" if record is None else f"{record.size:,} bytes {record.sha256}"
