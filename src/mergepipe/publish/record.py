"""A published file as the manifest records it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mergepipe.manifest.model import FileRecord


def file_record(folder: Path, name: str) -> FileRecord:
    """Size and SHA-256 of `folder/name`, under its name below the folder."""
    path = folder / name
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(name, path.stat().st_size, f"sha256:{digest}")
