"""Reads and writes files front to back: what any program that moves these bytes must take.

    python -m benchmarks.sequential buffered|direct [read FILE BYTES]... [write FILE BYTES]...

in the order given; -1 bytes reads a whole file. `buffered` goes through the page cache, `direct` past it (O_DIRECT).
Which of the two is faster depends on the machine, on whether it is reading or writing, and on whether the file is in
the page cache; so both are measured, and the floor is the faster. What is written is durable before the program ends.
It prints how many seconds reading and writing took, as JSON: `{"read": s, "write": s}`, its own start left out.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import sys
import time

_BUFFER = 1 << 20  # small enough to stay in the processor's cache, large enough that calls do not count
_AHEAD = 16 << 20  # of a file that is being read through the page cache, so much is on its way


def read(path: str, count: int, direct: bool = False) -> None:
    """Read the first `count` bytes of a file, or all of it if `count` is -1. `EOFError` if it has fewer.

    The system's own read-ahead would go beyond them; it is off, and ours stops where it must. Direct reads end with
    a whole page.
    """
    buffer = memoryview(mmap.mmap(-1, _BUFFER))  # of whole pages, as direct reading demands
    left = os.stat(path).st_size if count < 0 else count  # noqa: PTH116 - pathlib takes longer to import than this
    file = _open(path, os.O_RDONLY, direct)
    try:
        announced, end = 0, left
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        while left:
            while not _is_direct(file) and announced < min(end, end - left + _AHEAD):
                part = min(_AHEAD // 4, end - announced)
                os.posix_fadvise(file, announced, part, os.POSIX_FADV_WILLNEED)
                announced += part
            asked = min(left, _BUFFER)
            if _is_direct(file):
                asked = -(-asked // mmap.PAGESIZE) * mmap.PAGESIZE
            got = min(left, os.readv(file, [buffer[:asked]]))
            if not got:
                raise EOFError(f"{path}: {left:,} bytes short of the {count:,} to be read")
            left -= got
    finally:
        os.close(file)


def write(path: str, count: int, direct: bool = False) -> None:
    """Write `count` bytes that do not compress to a new file, durably."""
    pages = mmap.mmap(-1, _BUFFER)
    pages.write(os.urandom(_BUFFER))
    buffer = memoryview(pages)
    file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct)
    try:
        while count:
            part = min(count, _BUFFER)
            if part % mmap.PAGESIZE:
                _through_the_cache(file)  # the last part of a file that is no whole number of pages
            count -= os.write(file, buffer[:part])
        os.fsync(file)
    finally:
        os.close(file)


def _open(path: str, flags: int, direct: bool) -> int:
    try:
        return os.open(path, flags | (os.O_DIRECT if direct else 0), 0o666)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags & ~os.O_EXCL, 0o666)  # a file system that has pages only, such as tmpfs


def _is_direct(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)


def _through_the_cache(file: int) -> None:
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT)


if __name__ == "__main__":
    way, *rest = sys.argv[1:]
    spent = {"read": 0.0, "write": 0.0}
    words = iter(rest)
    for verb, path, count in zip(words, words, words, strict=True):
        started = time.perf_counter()
        {"read": read, "write": write}[verb](path, int(count), {"buffered": False, "direct": True}[way])
        spent[verb] += time.perf_counter() - started
    print(json.dumps(spent))
