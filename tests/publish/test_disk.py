from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from mergepipe.errors import OutputError
from mergepipe.publish import disk as disk_module
from mergepipe.publish.disk import LocalDisk, partial_name, writing

DISK = LocalDisk()


@pytest.fixture(params=["renameat2", "rename"])
def any_rename(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with the kernel's own no-replace rename, once as where there is none."""
    if request.param == "rename":
        monkeypatch.setattr(disk_module, "_renameat2", lambda source, target, flag: False)


def test_write_file_replaces_as_a_whole(tmp_path: Path) -> None:
    """The new bytes stand under the name, nothing else is left beside it."""
    path = tmp_path / "a.json"
    DISK.write_file(path, b"old")
    DISK.write_file(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails while syncing leaves what stood there, no partial file, and names the file it failed on."""
    path = tmp_path / "a.json"
    DISK.write_file(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as raised:
        DISK.write_file(path, b"new")
    assert raised.value.filename == str(partial_name(path))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_append_adds_to_the_end(tmp_path: Path) -> None:
    """Appending creates the file and keeps what is in it."""
    DISK.append(tmp_path / "log", b"one\n")
    DISK.append(tmp_path / "log", b"two\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


@pytest.mark.usefixtures("any_rename")
@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_rename_new_never_replaces(tmp_path: Path, kind: str) -> None:
    """An existing target of any kind, an empty folder and a dangling link included, is refused and kept."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_bytes(b"kept")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        DISK.rename_new(source, target)
    assert source.is_dir()
    assert os.path.lexists(target)


@pytest.mark.usefixtures("any_rename")
def test_rename_new_moves(tmp_path: Path) -> None:
    """A free name is taken, with all that is in the folder."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"a")
    DISK.rename_new(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "a").read_bytes() == b"a"
    assert not (tmp_path / "source").exists()


def test_exchange_swaps_two_folders(tmp_path: Path) -> None:
    """Where the file system can, both names change hands; where not, nothing is done and it is said."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    done = DISK.exchange(one, other)
    assert ((one / "name").read_text() == "other") is done
    assert ((other / "name").read_text() == "one") is done


def test_exchange_with_nothing_fails_with_both_names(tmp_path: Path) -> None:
    """A missing side is an error, not "unsupported"."""
    (tmp_path / "one").mkdir()
    if not DISK.exchange(tmp_path / "one", tmp_path / "one"):
        pytest.skip("this file system cannot exchange names")
    with pytest.raises(FileNotFoundError) as raised:
        DISK.exchange(tmp_path / "one", tmp_path / "none")
    assert (raised.value.filename, raised.value.filename2) == (str(tmp_path / "one"), str(tmp_path / "none"))


def test_a_c_library_without_renameat2_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No exchange where the C library does not have the call; renaming works without it."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **keys: object())
    (tmp_path / "one").mkdir()
    assert DISK.exchange(tmp_path / "one", tmp_path / "one") is False
    DISK.rename_new(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").is_dir()


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    """What a link in the tree points to is somebody else's and stays."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "other")
    DISK.remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert (tmp_path / "other" / "kept").exists()


def test_writing_names_file_cause_and_remedy() -> None:
    """An OSError becomes an OutputError with the file it was about, the cause and what to do."""
    with (
        pytest.raises(OutputError, match=r"^/x/y: No space left on device; free some$"),
        writing(Path("/x"), "free some"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/y")
    with pytest.raises(OutputError, match=r"^/x: odd; free some$"), writing(Path("/x"), "free some"):
        raise OSError("odd")
