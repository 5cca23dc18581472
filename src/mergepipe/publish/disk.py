"""The operations on the file system that publishing is made of, as a protocol that tests can stop or fail."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from mergepipe.errors import OutputError

# From Linux's fcntl.h; `renameat2(2)`.
_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2
# How a kernel (ENOSYS) or a file system (the others) says that it does not know a rename flag.
_UNKNOWN_FLAG: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


class Disk(Protocol):
    """Every change publishing makes to the file system. All methods raise `OSError`.

    Only what was synced is promised to survive a power failure: a file's bytes by `sync_file`, a name by
    `sync_folder` on the folder that holds it.
    """

    def make_folder(self, path: Path) -> None:
        """Create one folder; one that is there is left as it is."""
        ...

    def write_file(self, path: Path, data: bytes) -> None:
        """Create or replace a file, its bytes synced: under `path` stands the old or the new, never a part."""
        ...

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file, created if need be, and sync its bytes; if stopped, a part may stand there."""
        ...

    def sync_file(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def rename_new(self, source: Path, target: Path) -> None:
        """Rename; `FileExistsError` if `target` exists, even as an empty folder."""
        ...

    def exchange(self, one: Path, other: Path) -> bool:
        """Swap two names in one atomic step. False, and nothing done, where kernel or file system cannot."""
        ...

    def remove_file(self, path: Path) -> None: ...

    def remove_tree(self, path: Path) -> None:
        """Remove a folder and all below it, links not followed; if stopped, a part may be left."""
        ...


class LocalDisk:
    """A local file system.

    Where the kernel has no `renameat2`, `rename_new` looks first and renames then: safe only because OUT
    is locked against other runs of MergePipe.
    """

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def write_file(self, path: Path, data: bytes) -> None:
        unfinished = partial_name(path)
        try:
            _write(unfinished, data, os.O_TRUNC)
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def append(self, path: Path, data: bytes) -> None:
        _write(path, data, os.O_APPEND)

    def sync_file(self, path: Path) -> None:
        _sync(path, os.O_RDONLY)

    def sync_folder(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename_new(self, source: Path, target: Path) -> None:
        if _renameat2(source, target, _RENAME_NOREPLACE):
            return
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)

    def exchange(self, one: Path, other: Path) -> bool:
        return _renameat2(one, other, _RENAME_EXCHANGE)

    def remove_file(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)


def partial_name(path: Path) -> Path:
    """Where `write_file` gathers the bytes of `path` before they get its name."""
    return path.with_name(f".{path.name}.partial")


@contextlib.contextmanager
def writing(where: Path, advice: str) -> Iterator[None]:
    """Turn an `OSError` into an `OutputError` that names the file (or else `where`), the cause and what to do."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{error.filename or where}: {error.strerror or error}; {advice}") from error


def _write(path: Path, data: bytes, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError as error:
        # Errors of write and fsync carry no file name, and the user needs one.
        raise _named(error, path) from error
    finally:
        os.close(descriptor)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise _named(error, path) from error
    finally:
        os.close(descriptor)


def _renameat2(source: Path, target: Path, flag: int) -> bool:
    """True if done, False if this flag is unknown here; any other failure is an `OSError` with both names."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # a C library without it
        return False
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN_FLAG:
        return False
    raise OSError(code, os.strerror(code), str(source), None, str(target))


def _named(error: OSError, path: Path) -> OSError:
    return OSError(error.errno, error.strerror, str(path))
