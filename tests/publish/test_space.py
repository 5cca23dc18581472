from __future__ import annotations

import os
from pathlib import Path

import pytest

from mergepipe.errors import OutputError
from mergepipe.publish.space import prepare_folder, require_space

_HUGE = 2**70


def test_too_little_space_gives_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is needed and what is free are in the message, and what is missing to go on."""
    found = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda folder: found)
    free = found.f_bavail * found.f_frsize
    with pytest.raises(OutputError) as raised:
        require_space(tmp_path, free + 1_000, 0)
    assert f"needs {free + 1_000:,} more bytes" in str(raised.value)
    assert f"{free:,} are free" in str(raised.value)
    assert "free 1,000 bytes" in str(raised.value)
    require_space(tmp_path, free, 0)


def test_staged_bytes_are_not_needed_again(tmp_path: Path) -> None:
    """A resumed run needs room only for what is not staged yet."""
    with pytest.raises(OutputError):
        require_space(tmp_path, _HUGE, 0)
    require_space(tmp_path, _HUGE, _HUGE - 1)
    require_space(tmp_path, _HUGE, _HUGE + 1)


def test_missing_parents_are_created(tmp_path: Path) -> None:
    """OUT's parent folders come into being as needed."""
    require_space(tmp_path / "a" / "b", 1, 0)
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A parent that is a file, or lies below one, is an error of the output."""
    (tmp_path / "file").write_bytes(b"kept")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match=str(folder)):
            prepare_folder(folder)
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_an_unwritable_parent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to write, the run stops before any work (asked of the system: root may write anywhere)."""
    asked: list[tuple[Path, int]] = []

    def deny(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return False

    monkeypatch.setattr(os, "access", deny)
    with pytest.raises(OutputError, match="not writable"):
        require_space(tmp_path, 1, 0)
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
