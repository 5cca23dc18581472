"""Files made cold and warm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.pagecache import make_cold, make_warm, resident_bytes

SIZE = (3 << 20) + 17  # not whole pages


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file on a disk; there is nothing to drop where files live in memory."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True)
    if kind.stdout.strip() in {"tmpfs", "ramfs"}:
        pytest.skip("the temporary folder is in memory")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_cold_and_warm(file: Path) -> None:
    """A cold file has nothing in the page cache, a warm one everything, and looking changes neither."""
    assert make_cold([file]) == 0
    assert resident_bytes(file) == 0
    assert make_warm([file]) == SIZE
    assert resident_bytes(file) == SIZE


def test_a_file_read_in_part_is_partly_there(file: Path) -> None:
    """Only pages that were read, and what the system read ahead, are in the cache."""
    make_cold([file])
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(descriptor, 1, 2 << 20)
    finally:
        os.close(descriptor)
    assert 0 < resident_bytes(file) < SIZE


def test_contents_are_left_alone(file: Path) -> None:
    """Looking at a file and dropping it change no byte of it."""
    before = file.read_bytes()
    resident_bytes(file)
    make_cold([file])
    assert file.read_bytes() == before


def test_empty_file(tmp_path: Path) -> None:
    """An empty file is neither cold nor warm, and no error."""
    path = tmp_path / "empty"
    path.touch()
    assert resident_bytes(path) == 0
