"""Local directories keep the store's contract, with few open files and plain errors."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from mergepipe.errors import SourceError
from mergepipe.store.contract import Access, ByteStore
from mergepipe.store.local import LocalStore
from mergepipe.testing.stores import StoreContract, read


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Files below `folder`."""
    for key, data in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


class TestLocalStore(StoreContract):
    def make(self, folder: Path, files: Mapping[str, bytes]) -> ByteStore:
        return LocalStore(write(folder, files), Access.RANGED)


class TestSequentialLocalStore(StoreContract):
    def make(self, folder: Path, files: Mapping[str, bytes]) -> ByteStore:
        return LocalStore(write(folder, files), Access.SEQUENTIAL)


def open_below(folder: Path) -> int:
    """How many of this process's open files are below `folder`."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(entry.readlink())
        except OSError:
            continue  # the listing's own handle
    return sum(link.is_relative_to(folder) for link in links)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_open_files_are_bounded(tmp_path: Path) -> None:
    """A hundred files are read with at most 32 open at once, each of them rightly, and none stays open."""
    files = {f"shard{n:03}": bytes([n]) * 10 for n in range(100)}
    store = LocalStore(write(tmp_path, files), Access.RANGED)
    most = 0
    for turn in range(3):
        for key, data in files.items():
            assert read(store, key, turn, 5) == data[:5]
            most = max(most, open_below(tmp_path))
    assert 0 < most <= 32
    store.close()
    assert open_below(tmp_path) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_the_file_used_longest_ago_is_closed(tmp_path: Path) -> None:
    """What was read lately stays open, whenever it was opened first."""
    files = {f"shard{n:03}": b"0123456789" for n in range(33)}
    store = LocalStore(write(tmp_path, files), Access.RANGED)
    *first, last = files
    for key in (*first, first[0], last):
        read(store, key, 0, 1)
    for key in first[:2]:
        (tmp_path / key).unlink()
    assert read(store, first[0], 3, 2) == b"34"
    with pytest.raises(SourceError, match=first[1]):
        read(store, first[1], 3, 2)
    store.close()


def test_a_truncated_file_is_named_with_its_bytes(tmp_path: Path) -> None:
    """The message has the file, where it ends, what is missing, and calls it truncated."""
    store = LocalStore(write(tmp_path, {"model.safetensors": b"x" * 2000}), Access.RANGED)
    with pytest.raises(SourceError, match="truncated") as caught:
        read(store, "model.safetensors", 1500, 1000)
    message = str(caught.value)
    assert str(tmp_path / "model.safetensors") in message
    assert "ends at byte 2,000" in message
    assert "500 bytes before" in message
    store.close()


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """Neither its version nor its bytes are given."""
    store = LocalStore(write(tmp_path, {"folder/file": b"x"}), Access.RANGED)
    with pytest.raises(SourceError, match="folder: not a regular file"):
        store.version("folder")
    with pytest.raises(SourceError, match="folder"):
        read(store, "folder", 0, 1)
    store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """No permission: which file, and why."""
    store = LocalStore(write(tmp_path, {"secret": b"x"}), Access.RANGED)
    (tmp_path / "secret").chmod(0)
    with pytest.raises(SourceError, match=r"secret: .*[Pp]ermission"):
        read(store, "secret", 0, 1)
    store.close()


def test_a_failed_open_leaves_the_store_usable(tmp_path: Path) -> None:
    """After an error, other files are read as before."""
    store = LocalStore(write(tmp_path, {"here": b"abc"}), Access.RANGED)
    with pytest.raises(SourceError, match="gone"):
        read(store, "gone", 0, 1)
    assert read(store, "here", 0, 3) == b"abc"
    store.close()


def test_versions_tell_states_apart(tmp_path: Path) -> None:
    """A file that was written again, or replaced by one of equal size, has another version."""
    store = LocalStore(write(tmp_path, {"w": b"abc"}), Access.RANGED)
    first = store.version("w")
    os.utime(tmp_path / "w", ns=(1, 1))
    second = store.version("w")
    (tmp_path / "new").write_bytes(b"abd")
    os.utime(tmp_path / "new", ns=(1, 1))
    (tmp_path / "new").replace(tmp_path / "w")
    assert len({first, second, store.version("w")}) == 3
    store.close()


def test_hidden_folders_are_not_listed_and_links_are_followed(tmp_path: Path) -> None:
    """As in a Hub cache: files are links to blobs elsewhere; `.cache` is nobody's model."""
    write(tmp_path / "blobs", {"abc": b"weights"})
    root = write(tmp_path / "model", {".cache/lock": b"", "config.json": b"{}", ".hidden.json": b""})
    (root / "model.safetensors").symlink_to(tmp_path / "blobs" / "abc")
    (root / "more").symlink_to(tmp_path / "blobs")
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    store = LocalStore(root, Access.RANGED)
    assert store.keys() == (".hidden.json", "config.json", "model.safetensors", "more/abc")
    assert read(store, "model.safetensors", 0, 7) == b"weights"
    store.close()


def test_links_in_a_circle_are_not_followed_for_ever(tmp_path: Path) -> None:
    """Links to a folder above, and from one folder to another and back, end; so does a link to itself."""
    root = write(tmp_path / "model", {"a/one": b"1", "b/two": b"2"})
    for name in ("self", "again", "once more"):
        (root / "a" / name).symlink_to(root)
    (root / "a" / "to b").symlink_to(root / "b")
    (root / "b" / "to a").symlink_to(root / "a")
    (root / "itself").symlink_to(root / "itself")
    store = LocalStore(root, Access.RANGED)
    assert store.keys() == ("a/one", "a/to b/two", "b/to a/one", "b/two")
    store.close()


def test_a_root_that_vanished_is_said(tmp_path: Path) -> None:
    """Listing it is an error, not an empty model."""
    root = write(tmp_path / "model", {"w": b"x"})
    store = LocalStore(root, Access.RANGED)
    assert store.keys() == ("w",)
    shutil.rmtree(root)
    with pytest.raises(SourceError, match="model: cannot be listed: No such file"):
        store.keys()
