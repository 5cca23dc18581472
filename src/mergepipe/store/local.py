"""Files of a local directory, read by `preadv`: nothing is read that was not asked for, no read-ahead."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from mergepipe.errors import SourceError
from mergepipe.store.contract import Access, Version
from mergepipe.store.direct import DirectFile

_MAX_OPEN = 32


class LocalStore:
    """A directory as a `ByteStore`. At most 32 files are open at once; safe to share between threads."""

    def __init__(self, root: Path, access: Access) -> None:
        self._root = root
        self._advice = os.POSIX_FADV_RANDOM if access is Access.RANGED else os.POSIX_FADV_SEQUENTIAL
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Handle] = OrderedDict()

    def version(self, key: str) -> Version:
        path = self._root / key
        try:
            found = path.stat()
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error
        if not stat.S_ISREG(found.st_mode):
            raise SourceError(f"{path}: not a regular file")
        return Version(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def read_into(self, key: str, start: int, out: memoryview) -> None:
        handle = self._acquire(key)
        try:
            done = handle.direct.read_into(start, out)
            while done < len(out):
                got = os.preadv(handle.descriptor, [out[done:]], start + done)
                if got == 0:
                    raise SourceError(
                        f"{self._root / key}: ends at byte {start + done:,}, "
                        f"{len(out) - done:,} bytes before what its header promises; the file is truncated"
                    )
                done += got
        except OSError as error:
            raise SourceError(f"{self._root / key}: read failed at byte {start:,}: {error.strerror}") from error
        finally:
            self._release(handle)

    def keys(self) -> tuple[str, ...]:
        return tuple(sorted(self._below(self._root, "", frozenset())))

    def _below(self, folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        """Keys of the files below `folder`; a link back to one of the folders `above` is not followed."""
        try:
            own = folder.stat()
            entries = list(os.scandir(folder))
        except OSError as error:
            if prefix:
                return  # a folder that is not ours to see holds none of our files
            raise SourceError(f"{folder}: cannot be listed: {error.strerror}") from error
        identity = (own.st_dev, own.st_ino)
        if identity in above:
            return
        for entry in entries:
            try:
                mode = entry.stat().st_mode
            except OSError:
                continue  # a link to nothing
            if stat.S_ISREG(mode):
                yield prefix + entry.name
            elif stat.S_ISDIR(mode) and not entry.name.startswith("."):
                yield from self._below(folder / entry.name, f"{prefix}{entry.name}/", above | {identity})

    def close(self) -> None:
        with self._lock:
            for handle in self._open.values():
                handle.close()
            self._open.clear()

    def _acquire(self, key: str) -> _Handle:
        with self._lock:
            handle = self._open.pop(key, None)
            if handle is None:
                self._evict()
                path = self._root / key
                try:
                    handle = _Handle(path)
                except OSError as error:
                    raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
                os.posix_fadvise(handle.descriptor, 0, 0, self._advice)
            self._open[key] = handle
            handle.users += 1
            return handle

    def _release(self, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1

    def _evict(self) -> None:
        idle = [key for key, handle in self._open.items() if handle.users == 0]
        for key in idle[: max(0, len(self._open) - _MAX_OPEN + 1)]:
            self._open.pop(key).close()


class _Handle:
    __slots__ = ("descriptor", "direct", "users")

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.direct = DirectFile(path)
        self.users = 0

    def close(self) -> None:
        self.direct.close()
        os.close(self.descriptor)
