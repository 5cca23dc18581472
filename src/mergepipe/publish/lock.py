"""One run at a time for one OUT."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import filelock

from mergepipe.errors import PublishConflict
from mergepipe.publish.disk import writing
from mergepipe.publish.place import located, lock_file
from mergepipe.publish.space import prepare_folder


@contextlib.contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Hold OUT's lock, never waiting for it. OUT's parent folders are created.

    The lock is the kernel's (`flock`) and ends with the process, however that ends; the file `.OUT.mergepipe.lock`
    beside OUT means nothing by itself and stays, because removing it could give two runs a lock each.
    Raises `PublishConflict` naming the file and, where known, the process that holds it.
    """
    path = lock_file(located(out))
    prepare_folder(path.parent)
    # Before the attempt: older versions of filelock empty the file as they open it.
    holder = _holder(path)
    lock = filelock.FileLock(path)
    with writing(path, "OUT's parent folder must be writable and its file system must support locks"):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:  # an OSError, so it must not reach `writing`
            raise PublishConflict(
                f"{out}: another run{holder} is writing it and holds {path}; wait for it or choose another OUT"
            ) from None
    try:
        with writing(path, "the lock's holder cannot be recorded"):
            path.write_text(f"{os.getpid()}\n")
        yield
    finally:
        # A pid that no longer holds anything must not be blamed. Failing to say so harms nothing.
        with contextlib.suppress(OSError):
            os.truncate(path, 0)
        lock.release()


def _holder(path: Path) -> str:
    try:
        pid = int(path.read_text())
    except (OSError, ValueError):
        return ""
    return f" (process {pid})"
