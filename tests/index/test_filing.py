"""Files on the shelf: whole or not there, and believed only with their digests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from mergepipe.index.filing import (
    Unusable,
    array_digests,
    array_file,
    locked,
    read_arrays,
    read_header,
    stem,
    write_whole,
)


@dataclass(frozen=True)
class Header:
    format: str
    version: int
    arrays: dict[str, str] = field(hash=False)


ARRAYS = {"a": np.arange(7.0), "none": np.empty(0, np.int64), "grid": np.ones((2, 3), np.uint64)}


def write(path: Path, format_: str = "mine", version: int = 1) -> None:
    """`ARRAYS` under a header."""
    write_whole(path, array_file(Header(format_, version, array_digests(ARRAYS)), ARRAYS))


def test_arrays_and_header_come_back(tmp_path: Path) -> None:
    """With dtype and shape, empty ones too; nothing else lies about."""
    path = tmp_path / "file"
    write(path)
    header = read_header(path, "mine", 1, Header)
    read = read_arrays(path, header.arrays)
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        found = read[name]
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_so_is_said(tmp_path: Path) -> None:
    """Another format or version, another digest, no such array, no safetensors file, no file."""
    path = tmp_path / "file"
    write(path, version=2)
    with pytest.raises(Unusable, match="it is mine version 2, this program writes version 1"):
        read_header(path, "mine", 1, Header)
    write(path, format_="other")
    with pytest.raises(Unusable, match="it is other version 1"):
        read_header(path, "mine", 1, Header)
    with pytest.raises(Unusable, match="a is damaged"):
        read_arrays(path, {"a": "00"})
    with pytest.raises(Unusable, match="damaged or unreadable"):
        read_arrays(path, {"b": "00"})
    path.write_bytes(b"")
    with pytest.raises(Unusable, match="damaged or unreadable"):
        read_header(path, "mine", 1, Header)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_header(path, "mine", 1, Header)


def test_locks_are_held_and_given_back(tmp_path: Path) -> None:
    """The folder is made; the same file twice is locked once."""
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        with locked(folder, [folder / "b", folder / "a", folder / "b"]):
            assert sorted(path.name for path in folder.iterdir()) == ["a.lock", "b.lock"]


def test_a_stem_is_of_what_it_is_given() -> None:
    """32 hexadecimal digits; another identity, another stem."""
    assert stem([1, "a"]) == stem((1, "a"))
    assert len(stem([1, "a"])) == 32
    assert len({stem([1, "a"]), stem([2, "a"]), stem([1, "b"])}) == 3
