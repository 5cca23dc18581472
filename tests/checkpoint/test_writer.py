"""checkpoint/writer.py: a shard is written whole, hashed as written, or not there."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open

from mergepipe.checkpoint import writer as writer_module
from mergepipe.checkpoint.writer import BUFFER_BYTES, ShardWriter
from mergepipe.errors import OutputError
from mergepipe.testing.checkpoints import read_tensors


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as the writer spells it."""
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def random_bytes(count: int) -> NDArray[np.uint8]:
    """`count` bytes, the same for the same count."""
    return np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)


def test_the_library_reads_what_was_appended(tmp_path: Path) -> None:
    """Tensors of several dtypes, a scalar and an empty one, appended as arrays and views, come back."""
    path = tmp_path / "out.safetensors"
    half = np.array([[1.5, -2.0]], ml_dtypes.bfloat16)
    entries = [("half", "BF16", (1, 2)), ("none", "F32", (0, 4)), ("one", "F64", ()), ("bytes", "U8", (3,))]
    with ShardWriter(path, entries) as writer:
        writer.append(half)
        writer.append(np.empty((0, 4), np.float32))
        writer.append(np.array(0.1))
        writer.append(memoryview(b""))
        writer.append(memoryview(b"abc"))
        size, digest = writer.close()
    assert size == path.stat().st_size
    assert digest == file_digest(path)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert float(file.get_tensor("one")) == 0.1
        assert file.get_tensor("none").shape == (0, 4)
    assert read_tensors(tmp_path)["half"] == ("BF16", half.tobytes(), (1, 2))
    assert read_tensors(tmp_path)["bytes"] == ("U8", b"abc", (3,))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3_000_000), max_size=8), st.booleans())
def test_the_file_does_not_depend_on_how_bytes_are_cut(tmp_path: Path, cuts: list[int], reuse: bool) -> None:
    """Any cuts, with one buffer overwritten after each append or not: the same file, the digest of that file."""
    raw = random_bytes(3_000_000)
    path = tmp_path / "out.safetensors"
    buffer = np.empty_like(raw)
    edges = sorted({0, raw.size, *cuts})
    with ShardWriter(path, [("w", "U8", (raw.size,))]) as writer:
        for start, stop in itertools.pairwise(edges):
            part = raw[start:stop]
            if reuse:
                buffer[: part.size] = part
                part = buffer[: part.size]
            writer.append(part)
            if reuse:
                buffer[:] = 0
        _, digest = writer.close()
    assert digest == file_digest(path)
    assert path.read_bytes().endswith(raw.tobytes())


def test_files_larger_than_the_ring_pass_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the ring in one append, with early syncs on the way: right bytes, and a sync per interval."""
    synced: list[int] = []
    real = os.fdatasync

    def counting(descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(writer_module, "_DIRECT", 0)
    monkeypatch.setattr(writer_module, "_SYNC_EVERY", 4 << 20)
    monkeypatch.setattr(os, "fdatasync", counting)
    raw = random_bytes(3 * BUFFER_BYTES)
    path = tmp_path / "out.safetensors"
    with ShardWriter(path, [("w", "U8", (raw.size,))]) as writer:
        writer.append(raw)
        _, digest = writer.close()
    assert digest == file_digest(path)
    assert len(synced) == raw.size // (4 << 20)


@pytest.mark.parametrize("size", [(9 << 20) - 8 - 56, (9 << 20) + 1, 12345678])
@pytest.mark.parametrize("refused", ["never", "at the opening", "in the middle"])
def test_past_the_page_cache_or_not_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, refused: str
) -> None:
    """Large files go directly; where a file system or device refuses that, by way of the cache from there on."""
    opened, wrote, modes = os.open, os.write, []

    def opening(path: Path, flags: int, mode: int = 0o777) -> int:
        if refused == "at the opening" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags, mode)

    def writing(descriptor: int, view: memoryview) -> int:
        modes.append(writer_module.is_direct(descriptor))
        if refused == "in the middle" and len(modes) > 4 and modes[-1]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return wrote(descriptor, view)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "write", writing)
    raw = random_bytes(size)
    path = tmp_path / "out.safetensors"
    with ShardWriter(path, [("w", "U8", (size,))]) as writer:
        writer.append(raw)
        length, digest = writer.close()
    content = path.read_bytes()
    assert content.endswith(raw.tobytes())
    assert (len(content), file_digest(path)) == (length, digest)
    if direct_writing(tmp_path):
        assert any(modes) == (refused != "at the opening")


def direct_writing(folder: Path) -> bool:
    """Whether the file system of `folder` knows writing past the page cache."""
    try:
        os.close(os.open(folder / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_the_file_is_durable_before_close_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last thing done to the descriptor is an fsync, when all bytes are in the file."""
    sizes: list[int] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    with ShardWriter(tmp_path / "out.safetensors", [("w", "U8", (5,))]) as writer:
        writer.append(memoryview(b"12345"))
        assert sizes == []
        size, _ = writer.close()
    assert sizes == [size]


def write_file(path: Path, size: int, parts: Iterable[NDArray[np.uint8]]) -> tuple[int, str]:
    """One U8 tensor of `size` bytes from `parts`, in a writer that is closed at the end."""
    with ShardWriter(path, [("first", "U8", (size // 2,)), ("second", "U8", (size - size // 2,))]) as writer:
        for part in parts:
            writer.append(part)
        return writer.close()


def test_missing_and_surplus_bytes_are_refused_by_tensor(tmp_path: Path) -> None:
    """Fewer or more bytes than the header promises are an error, and no file stays."""
    path = tmp_path / "out.safetensors"
    with pytest.raises(OutputError, match="'second' is incomplete"):
        write_file(path, 8, [random_bytes(6)])
    with pytest.raises(OutputError, match=r"out\.safetensors: .* bytes came, the header promises"):
        write_file(path, 8, [random_bytes(5), random_bytes(4)])
    assert not path.exists()


def interrupted() -> Iterator[NDArray[np.uint8]]:
    """Bytes, then a failure of whoever makes them."""
    yield random_bytes(1 << 21)
    raise RuntimeError("interrupted")


def test_leaving_the_block_early_leaves_nothing(tmp_path: Path) -> None:
    """An exception, or a forgotten close, removes the file and ends the threads."""
    path = tmp_path / "out.safetensors"
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not walked
    with pytest.raises(RuntimeError, match="interrupted"):
        write_file(path, 1 << 22, interrupted())
    with ShardWriter(path, [("w", "U8", (5,))]) as writer:
        writer.append(memoryview(b"12345"))
    assert not path.exists()
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before  # noqa: PTH208


def failing(code: int, after: int) -> Callable[..., int]:
    """An `os.write` that fails with `code` once `after` bytes are through."""
    real, written = os.write, 0

    def write(descriptor: int, view: memoryview) -> int:
        nonlocal written
        if written >= after:
            raise OSError(code, os.strerror(code))
        written += real(descriptor, view)
        return len(view)

    return write


@pytest.mark.parametrize("count", [1 << 20, 64 << 20], ids=["seen by close", "seen by append"])
@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "free space"), (errno.EIO, "device failed"), (errno.EDQUOT, "quota")]
)
def test_a_failed_write_names_the_file_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str, count: int
) -> None:
    """Disk full in the middle: a typed error from the caller's own thread, however late, and no file."""
    path = tmp_path / "out.safetensors"
    monkeypatch.setattr(os, "write", failing(code, 1 << 19))
    with pytest.raises(OutputError, match=f"out.safetensors: cannot be written: .*{advice}") as caught:
        write_file(path, count, (random_bytes(1 << 20) for _ in range(count >> 20)))
    assert caught.value.exit_code == 1
    assert not path.exists()


@pytest.mark.parametrize("name", ["fdatasync", "fsync"])
def test_a_failed_sync_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The kernel reports a lost write once, to whichever sync comes first; the shard is then refused."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(writer_module, "_SYNC_EVERY", 1 << 20)
    monkeypatch.setattr(os, name, fail)
    path = tmp_path / "out.safetensors"
    with pytest.raises(OutputError, match="device failed"):
        write_file(path, 2 << 20, [random_bytes(2 << 20)])
    assert not path.exists()


def test_a_full_device_is_reported(tmp_path: Path) -> None:
    """The kernel's own ENOSPC, not a simulated one, through a link to the device that is always full."""
    path = tmp_path / "out.safetensors"
    path.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="free space"):
        write_file(path, 3 << 20, [random_bytes(3 << 20)])
    assert not path.is_symlink()


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """No such folder: an error before the first byte."""
    with pytest.raises(OutputError, match=r"nowhere/out\.safetensors: cannot be written"):
        ShardWriter(tmp_path / "nowhere" / "out.safetensors", []).__enter__()
