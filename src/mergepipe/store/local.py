"""Files of a local directory, read by `preadv`; no memory maps, so no hidden read-ahead."""

from __future__ import annotations

import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path

from mergepipe.errors import SourceError
from mergepipe.store.contract import Access, Version

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
            done = 0
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
        found: list[str] = []
        for folder, folders, files in os.walk(self._root, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(folder)
            found += [(here / name).relative_to(self._root).as_posix() for name in files if (here / name).is_file()]
        return tuple(sorted(found))

    def close(self) -> None:
        with self._lock:
            for handle in self._open.values():
                os.close(handle.descriptor)
            self._open.clear()

    def _acquire(self, key: str) -> _Handle:
        with self._lock:
            handle = self._open.pop(key, None)
            if handle is None:
                self._evict()
                path = self._root / key
                try:
                    handle = _Handle(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
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
            os.close(self._open.pop(key).descriptor)


class _Handle:
    __slots__ = ("descriptor", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.users = descriptor, 0
