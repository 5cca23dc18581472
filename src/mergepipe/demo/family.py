"""The trained family in its folder: made by a process of its own where it is not there yet."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from mergepipe.demo.process import lines_of
from mergepipe.demo.settings import DemoSettings
from mergepipe.demo.text import NAMES
from mergepipe.errors import UsageError

MARKER: Final = "demo.json"

_FAMILY: Final = "family"
_PARTIAL: Final = "family.partial"


@dataclass(frozen=True, slots=True)
class Family:
    """Directories of the base, and of the fine-tune for each domain."""

    base: Path
    experts: Mapping[str, Path]


def marker(settings: DemoSettings) -> dict[str, Any]:
    """What a family is made with; on one machine, equal markers mean equal weights."""
    return {"settings": settings.as_object(), "python": platform.python_version(), "torch": version("torch")}


def require_torch() -> None:
    """Raises `UsageError`, which says how to get it, if torch is not installed."""
    if find_spec("torch") is None:
        raise UsageError(
            "the demo trains its models with PyTorch, which is not installed: pip install 'mergepipe[demo]' "
            "(merging itself does not need it)"
        )


def ensure_family(folder: Path, settings: DemoSettings, note: Callable[[str], None]) -> Family:
    """Train the family into `folder/family`, or use the one that is there if it was made the same way.

    Raises `UsageError` if `folder` holds anything but a demo; nothing of it is touched then.
    """
    require_torch()
    target, partial = folder / _FAMILY, folder / _PARTIAL
    recorded = _recorded(target)
    if recorded is None and not partial.is_dir() and folder.exists() and (folder.is_file() or any(folder.iterdir())):
        raise UsageError(f"{folder}: is there and is no earlier demo: name a new folder (mergepipe demo DIR)")
    if recorded != marker(settings):
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        note(f"training a base and {len(NAMES)} fine-tunes of it, about a minute on two cores")
        for line in lines_of("mergepipe.demo.train", [str(partial), settings.to_json()]):
            note(line)
        partial.rename(target)
    return Family(target / "base", {name: target / name for name in NAMES})


def _recorded(family: Path) -> Any:
    """The marker of the family that is there, or None."""
    try:
        return json.loads((family / MARKER).read_text())
    except (OSError, ValueError):
        return None
