"""OUT's own name, and the hidden names beside it that are MergePipe's: the lock and the staging folders.

They are siblings of OUT, so they are on its file system and a rename can publish.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mergepipe.errors import PublishConflict


def located(out: Path) -> Path:
    """OUT as an absolute path that ends with its own name.

    Raises `PublishConflict` for `/`, `.` or `…/..`, beside which nothing can be staged and renamed.
    """
    if out.name in ("", ".."):
        raise PublishConflict(f"{out}: OUT needs a name of its own; give a directory to create, e.g. ./merged")
    return out.absolute()


def lock_file(out: Path) -> Path:
    """The file whose lock stands for OUT."""
    return out.parent / f".{out.name}.mergepipe.lock"


def staging_folder(out: Path, key: str) -> Path:
    """The staging folder for the plan digest `key` (`"sha256:…"` or bare hexadecimal digits)."""
    return out.parent / f".{out.name}.mergepipe-{key.rpartition(':')[2][:16]}"


def staging_folders(out: Path) -> list[Path]:
    """Every staging folder of OUT that is there, of any key, by name."""
    ours = re.compile(rf"\.{re.escape(out.name)}\.mergepipe-[0-9a-f]{{1,16}}")
    if not out.parent.is_dir():
        return []
    with os.scandir(out.parent) as entries:
        found = [Path(entry.path) for entry in entries if ours.fullmatch(entry.name) and _is_folder(entry)]
    return sorted(found)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
