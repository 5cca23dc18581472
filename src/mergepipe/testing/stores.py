"""The contract of a byte store, as a test class to inherit.

class TestMine(StoreContract):
    def make(self, folder, files): ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from mergepipe.errors import SourceError
from mergepipe.store.contract import ByteStore

FILES: Mapping[str, bytes] = {
    "weights.bin": bytes(range(256)) * 17,
    "deep/er/part.bin": b"0123456789",
    "config.json": b"{}",
    "empty": b"",
}


def refusal(action: Callable[[], object]) -> SourceError:
    """The `SourceError` that `action` raises; fails if it raises none."""
    try:
        action()
    except SourceError as error:
        return error
    raise AssertionError("a SourceError was expected")


def read(store: ByteStore, key: str, start: int, count: int) -> bytes:
    """`count` bytes of `key` from `start`."""
    out = bytearray(count)
    store.read_into(key, start, memoryview(out))
    return bytes(out)


class StoreContract:
    """What every `ByteStore` keeps. Subclasses give `make`: a store that holds exactly `files`."""

    def make(self, folder: Path, files: Mapping[str, bytes]) -> ByteStore:
        raise NotImplementedError

    def test_reads_the_range_it_was_asked_for(self, tmp_path: Path) -> None:
        """Any range of any file, in any order, is the file's own bytes there."""
        store = self.make(tmp_path, FILES)
        for key, data in FILES.items():
            for start, stop in ((0, len(data)), (len(data) // 2, len(data)), (0, len(data) // 3)):
                assert read(store, key, start, stop - start) == data[start:stop]
        store.close()

    def test_fills_the_whole_buffer_and_nothing_beside_it(self, tmp_path: Path) -> None:
        """A window into a larger buffer is filled; its surroundings stay."""
        store = self.make(tmp_path, FILES)
        out = bytearray(b"." * 12)
        store.read_into("deep/er/part.bin", 3, memoryview(out)[4:8])
        assert out == b"....3456...."
        store.close()

    def test_reading_nothing_is_no_error(self, tmp_path: Path) -> None:
        """An empty window is filled by doing nothing, at the end of a file too."""
        store = self.make(tmp_path, FILES)
        assert read(store, "empty", 0, 0) == b""
        assert read(store, "deep/er/part.bin", 10, 0) == b""
        store.close()

    def test_a_file_that_ends_early_is_named_with_its_end(self, tmp_path: Path) -> None:
        """Reading past the end says which file, where it ends and how much is missing."""
        store = self.make(tmp_path, FILES)
        for start, count, end, short in ((0, 11, 10, 1), (8, 5, 10, 3)):
            message = str(refusal(lambda start=start, count=count: read(store, "deep/er/part.bin", start, count)))  # type: ignore[misc]
            assert "deep/er/part.bin" in message
            assert f"ends at byte {end}" in message
            assert f"{short} bytes" in message
        store.close()

    def test_reading_beyond_the_end_is_refused(self, tmp_path: Path) -> None:
        """A range that begins behind the end is an error, not an empty read."""
        store = self.make(tmp_path, FILES)
        assert "part.bin" in str(refusal(lambda: read(store, "deep/er/part.bin", 11, 1)))
        store.close()

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        """Neither reading nor asking for the version of what is not there succeeds."""
        store = self.make(tmp_path, FILES)
        assert "absent.bin" in str(refusal(lambda: read(store, "absent.bin", 0, 1)))
        assert "absent.bin" in str(refusal(lambda: store.version("absent.bin")))
        store.close()

    def test_lists_every_file_sorted(self, tmp_path: Path) -> None:
        """`keys` are relative POSIX paths of all files, sorted."""
        store = self.make(tmp_path, FILES)
        assert store.keys() == tuple(sorted(FILES))
        store.close()

    def test_versions_tell_sizes(self, tmp_path: Path) -> None:
        """A version holds the file's size, and is the same as long as nothing changes."""
        store = self.make(tmp_path, FILES)
        for key, data in FILES.items():
            assert store.version(key).size == len(data)
            assert store.version(key) == store.version(key)
        store.close()

    def test_threads_may_share_it(self, tmp_path: Path) -> None:
        """Reads of several threads do not disturb one another."""
        files = {f"file{n}": bytes([n]) * 5000 for n in range(48)}
        store = self.make(tmp_path, files)
        wrong: list[str] = []

        def look(offset: int) -> None:
            for turn in range(150):
                key = f"file{(turn * 7 + offset) % 48}"
                if read(store, key, turn, 1000) != files[key][:1000]:
                    wrong.append(key)

        threads = [threading.Thread(target=look, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        store.close()

    def test_closing_twice_is_no_error(self, tmp_path: Path) -> None:
        """`close` may be called again, with or without reads before."""
        store = self.make(tmp_path, FILES)
        read(store, "config.json", 0, 2)
        store.close()
        store.close()
