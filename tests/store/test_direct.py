"""Direct reads: the same bytes as ordinary ones wherever they begin and end, cached or not."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepipe.core.extents import PAGE
from mergepipe.errors import SourceError
from mergepipe.store import direct
from mergepipe.store.contract import Access
from mergepipe.store.direct import DirectFile
from mergepipe.store.local import LocalStore

SIZE = 3 * (512 << 10) + 1234
DATA = os.urandom(SIZE)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a size that no page and no piece divides."""
    path = tmp_path_factory.mktemp("direct") / "data"
    path.write_bytes(DATA)
    return path


def drop(path: Path) -> None:
    """Out of the page cache, if the file system does as it is advised."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def placed(count: int, shift: int) -> memoryview:
    """`count` bytes of memory that begin `shift` bytes into a page, and one more on each side to watch."""
    return memoryview(mmap.mmap(-1, count + 2 * PAGE))[PAGE - 1 + shift : PAGE + 1 + shift + count]


@settings(deadline=None, max_examples=80)
@given(
    start=st.integers(0, SIZE - 1),
    count=st.one_of(st.integers(1, SIZE), st.sampled_from([64 << 10, 512 << 10, 1 << 20])),
    shift=st.one_of(st.none(), st.integers(0, 2)),
)
def test_the_bytes_of_the_file_and_no_others(file: Path, start: int, count: int, shift: int | None) -> None:
    """With memory that lies as the file does (None), and with memory that does not; the neighbours are not touched."""
    count = min(count, SIZE - start)
    drop(file)
    memory = placed(count, start % PAGE if shift is None else shift)
    opened = DirectFile(file)
    filled = opened.read_into(start, memory[1:-1])
    opened.close()
    assert 0 <= filled <= count
    assert bytes(memory[1 : 1 + filled]) == DATA[start : start + filled]
    assert memory[0] == memory[-1] == 0
    store = LocalStore(file.parent, Access.RANGED)
    store.read_into(file.name, start, memory[1:-1])
    store.close()
    assert bytes(memory[1:-1]) == DATA[start : start + count]


@pytest.mark.parametrize("shift", [0, 8])
def test_large_cold_reads_leave_the_cache_alone_and_are_complete(file: Path, shift: int) -> None:
    """What was read past the cache is not in it afterwards; what is in it is read from there."""
    drop(file)
    opened = DirectFile(file)
    memory = placed(1 << 20, shift)
    filled = opened.read_into(0, memory[1:-1])
    if not filled:
        pytest.skip("no direct reads on this file system, or its pages cannot be dropped")
    assert filled == 1 << 20
    assert opened.read_into(0, memory[1:-1]) == filled  # not cached by the first
    assert opened.read_into(0, placed(1000, 0)) == 0  # small ones are not for it
    file.read_bytes()
    assert opened.read_into(0, memory[1:-1]) == 0  # what the cache holds is read from there
    opened.close()


def test_a_file_that_ends_early_is_read_to_its_end_and_then_refused(file: Path) -> None:
    """A truncated file is found out by the ordinary way."""
    drop(file)
    opened = DirectFile(file)
    assert opened.read_into(SIZE - (100 << 10), placed(200 << 10, 0)[1:-1]) in (0, 100 << 10)
    opened.close()
    drop(file)
    with pytest.raises(SourceError, match="truncated"):
        LocalStore(file.parent, Access.RANGED).read_into(file.name, SIZE - (100 << 10), placed(200 << 10, 0))


def test_a_file_system_without_direct_reads_is_read_the_ordinary_way(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINVAL, as from file systems in memory, ends the attempts for good."""
    asked: list[bool] = []
    ordinary = os.preadv

    def refuse(descriptor: int, buffers: list[memoryview], start: int) -> int:
        asked.append(is_direct := _is_direct(descriptor))
        if is_direct:
            raise OSError(errno.EINVAL, "Invalid argument")
        return ordinary(descriptor, buffers, start)

    monkeypatch.setattr(os, "preadv", refuse)
    store = LocalStore(file.parent, Access.RANGED)
    for _ in range(3):
        drop(file)
        out = memoryview(bytearray(1 << 20))
        store.read_into(file.name, 5, out)
        assert out == DATA[5 : 5 + (1 << 20)]
    assert sum(asked) <= 1  # it is not tried again


def test_an_empty_file_and_one_that_cannot_be_opened_fill_nothing(tmp_path: Path) -> None:
    """Nothing is raised: whoever reads the rest finds out what is wrong."""
    (tmp_path / "empty").write_bytes(b"")
    for name in ("empty", "missing"):
        assert DirectFile(tmp_path / name).read_into(0, placed(1 << 20, 0)) == 0


def test_nothing_stays_open(file: Path) -> None:
    """Descriptors and the map of the cache are given back."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        drop(file)
        opened = DirectFile(file)
        opened.read_into(0, placed(1 << 20, 0))
        opened.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def _is_direct(descriptor: int) -> bool:
    flags = next(line for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines() if "flags" in line)
    return bool(int(flags.split()[1], 8) & os.O_DIRECT)


def test_pages_are_asked_for_by_their_own_address() -> None:
    """Addresses of slices, from which alignment is told."""
    memory = memoryview(mmap.mmap(-1, 2 * PAGE))
    assert direct._address(memory[5:]) - direct._address(memory) == 5
    assert ctypes.string_at(direct._address(memory[5:]), 3) == b"\0\0\0"
