"""Reads and writes files front to back, in requests of 1 MiB: what any program that moves these bytes must take.

    python -m benchmarks.sequential [read FILE BYTES]... [write FILE BYTES]...

in the order given; -1 bytes reads a whole file. What is written is made durable before the program ends. It imports
little, so that its start-up is small beside the work.
"""

from __future__ import annotations

import os
import sys

_BUFFER = 1 << 20  # small enough to stay in the processor's cache, large enough that calls do not count
_TAIL = 32 << 20  # more than the system reads ahead


def read(path: str, count: int) -> None:
    """Read the first `count` bytes of a file, or all of it if `count` is -1. `EOFError` if it has fewer."""
    buffer = memoryview(bytearray(_BUFFER))
    size = os.stat(path).st_size  # noqa: PTH116 - pathlib takes longer to import than this
    left = size if count < 0 else count
    with open(path, "rb", buffering=0) as source:  # noqa: PTH123 - the same
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        ahead = True
        while left:
            if ahead and count >= 0 and left <= _TAIL:
                # From here on reading ahead would fetch what nobody asked for.
                os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                ahead = False
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
