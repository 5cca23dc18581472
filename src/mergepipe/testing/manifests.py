"""Receipts and manifests of made-up outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from mergepipe.core.digest import digest_of
from mergepipe.manifest.model import FileRecord, Identity, InputRecord, Manifest, Receipt, Run

PLAN: Mapping[str, Any] = {"method": "ties", "budget": 0.3, "reads": {"w": ["ff", "0"]}, "bound": 1e-05}


def record_of(name: str, data: bytes) -> FileRecord:
    """The record of a file `name` with the bytes `data`."""
    return FileRecord(name, len(data), "sha256:" + hashlib.sha256(data).hexdigest())


def receipt_of(name: str, data: bytes) -> Receipt:
    """A receipt for a shard `name` with the bytes `data`."""
    return Receipt(
        file=record_of(name, data),
        read_digests={"expert-a": "blake3:aa", "base": "blake3:bb"},
        bytes_by_purpose={"base": len(data), "expert": 2 * len(data)},
        reads_by_purpose={"base": 1, "expert": 2},
        expert_bytes_by_source={"expert-a": 2 * len(data)},
    )


def sample_manifest(files: Sequence[FileRecord], plan: Mapping[str, Any] = PLAN) -> Manifest:
    """A manifest that lists `files` and agrees with itself."""
    return Manifest(
        identity=Identity(
            recipe="merge_method: ties\n",
            method="ties",
            seed=0,
            plan_digest=digest_of(plan),
            plan=plan,
            inputs=(
                InputRecord("org/base", -1, "sha256:00", "blake3:00"),
                InputRecord("ä/β", 0, "sha256:11", "blake3:11"),
            ),
            files=tuple(files),
            numerics={"engine": "numpy", "accumulate": "float32"},
        ),
        run=Run("2026-01-01T00:00:00Z", "host", {"mergepipe": "0.1.0"}, ({"url": "/models/base", "size": 12},)),
        result={"output": "out", "method": "ties", "expert_bytes": {"full": 100, "read": 30}, "bound": {"l2": 0.25}},
    )
