"""Room for the output, asked for before the first byte is written."""

from __future__ import annotations

import os
from pathlib import Path

from mergepipe.errors import OutputError
from mergepipe.publish.disk import writing


def prepare_folder(folder: Path) -> None:
    """Create OUT's parent folders where missing. Raises `OutputError` if they cannot be made or written to."""
    with writing(folder, "OUT's parent folder cannot be created; choose another OUT"):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{folder}: not writable; choose another OUT or change its permissions")


def require_space(folder: Path, needed_bytes: int, already: int) -> None:
    """Check that `folder`, created where missing, has room for an output of `needed_bytes`, `already` of them staged.

    With `--overwrite` the old output is still there until the new one is whole, so its bytes do not count
    as free. Raises `OutputError` with both figures. What others write meanwhile is not foreseen.
    """
    prepare_folder(folder)
    with writing(folder, "its free space cannot be found out"):
        found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    missing = max(0, needed_bytes - already)
    if missing > free:
        raise OutputError(
            f"{folder}: the output needs {missing:,} more bytes, {free:,} are free there: "
            f"free {missing - free:,} bytes or choose an OUT on another disk"
        )
