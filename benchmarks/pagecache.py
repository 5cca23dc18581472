"""Making files cold or warm in the page cache, and looking which they are."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_BUFFER: Final = 8 << 20
_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def make_cold(files: Iterable[Path]) -> int:
    """Drop the files from the page cache; how many bytes of them stayed.

    First by posix_fadvise, file by file, which any user may do and which leaves other files alone; if something
    stays and the system lets us, by dropping the whole machine's clean pages. On file systems that live in memory
    (tmpfs) everything stays.
    """
    named = tuple(files)
    for file in named:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    left = sum(map(resident_bytes, named))
    if left and os.access(_DROP_CACHES, os.W_OK):
        os.sync()
        _DROP_CACHES.write_text("1\n")
        left = sum(map(resident_bytes, named))
    return left


def make_warm(files: Iterable[Path]) -> int:
    """Read the files once; how many bytes of them are in the page cache then."""
    named = tuple(files)
    buffer = bytearray(_BUFFER)
    for file in named:
        with file.open("rb", buffering=0) as source:
            while source.readinto(buffer):
                pass
    return sum(map(resident_bytes, named))


def resident_bytes(file: Path) -> int:
    """How many bytes of one file are in the page cache, in whole pages (mincore).

    The kernel tells the truth only to who owns the file or may write it, and "all of it" to others.
    """
    size = file.stat().st_size
    if size == 0:
        return 0
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with file.open("rb") as source, mmap.mmap(source.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        start = (ctypes.c_char * size).from_buffer(mapped)  # of a private mapping: nothing is written to the file
        try:
            failed = _LIBC.mincore(ctypes.byref(start), ctypes.c_size_t(size), pages)
        finally:
            del start  # the mapping cannot be closed before
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(file))
    return min(size, mmap.PAGESIZE * sum(page & 1 for page in pages))
