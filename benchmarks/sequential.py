"""Reads and writes files front to back, in requests of 1 MiB: what any program that moves these bytes must take.

    python -m benchmarks.sequential [read FILE BYTES]... [write FILE BYTES]...

in the order given; -1 bytes reads a whole file. What is written is made durable before the program ends. It imports
little, so that its start-up is small beside the work.
"""

from __future__ import annotations

import os
import sys

_BUFFER = 1 << 20  # small enough to stay in the processor's cache, large enough that calls do not count
_AHEAD = 16 << 20  # of a file that is being read, so much is on its way


def read(path: str, count: int) -> None:
    """Read the first `count` bytes of a file, or all of it if `count` is -1. `EOFError` if it has fewer.

    The system's own read-ahead would go beyond them; it is off, and ours stops where it must.
    """
    buffer = memoryview(bytearray(_BUFFER))
    left = os.stat(path).st_size if count < 0 else count  # noqa: PTH116 - pathlib takes longer to import than this
    with open(path, "rb", buffering=0) as source:  # noqa: PTH123 - the same
        file, announced, end = source.fileno(), 0, left
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        while left:
            while announced < min(end, end - left + _AHEAD):
                part = min(_AHEAD // 4, end - announced)
                os.posix_fadvise(file, announced, part, os.POSIX_FADV_WILLNEED)
                announced += part
            got = source.readinto(buffer[: min(left, _BUFFER)])
            if not got:
                raise EOFError(f"{path}: {left:,} bytes short of the {count:,} to be read")
            left -= got


def write(path: str, count: int) -> None:
    """Write `count` bytes that do not compress to a new file, durably."""
    buffer = memoryview(os.urandom(_BUFFER))
    with open(path, "xb", buffering=0) as out:  # noqa: PTH123 - see read
        while count:
            count -= out.write(buffer[: min(count, _BUFFER)])
        os.fsync(out.fileno())


if __name__ == "__main__":
    words = iter(sys.argv[1:])
    for verb, path, count in zip(words, words, words, strict=True):
        {"read": read, "write": write}[verb](path, int(count))
