"""Reading past the page cache: large reads of bytes that the system does not hold already.

What is read once and then not again gains nothing from the page cache, but pays for it: a copy, the search for
pages to give up, and, in a container, memory charged to the job. Bytes that the cache holds are read from it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final

from mergepipe.core.extents import PAGE

# Below this the system's own way costs less than asking whether to take it.
_LEAST: Final = 64 << 10
# Of a request whose memory does not lie as the file does; small enough to be copied out of the cache.
_BOUNCE: Final = 512 << 10
# What mincore may say of a page that is cached: only the lowest bit means something.
_CACHED: Final = bytes(range(1, 256, 2))
_O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)


class DirectFile:
    """One file opened once more for direct reads, with the first large one; safe to share between threads.

    Every read may fill less than it was asked to, even nothing: the caller reads the rest the ordinary way, which
    also finds out what is wrong. So nothing is raised here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._tried = not _O_DIRECT or os.sysconf("SC_PAGE_SIZE") != PAGE
        self._descriptor = -1
        self._pages: _CachedPages | None = None
        self._buffers: deque[mmap.mmap] = deque()

    def read_into(self, start: int, out: memoryview) -> int:
        """Fill `out` from byte `start` of the file as far as possible; how many bytes were filled."""
        if len(out) < _LEAST:
            return 0
        pages = self._opened()
        if pages is None or pages.hold(start, start + len(out)):
            return 0
        buffer = self._take()
        try:
            if (_address(out) - start) % PAGE == 0:
                return self._aligned(start, out, memoryview(buffer))
            return self._bounced(start, out, memoryview(buffer))
        except OSError as error:
            if error.errno == errno.EINVAL:  # of this file system, for good
                self._pages = None
            return 0
        finally:
            self._buffers.append(buffer)

    def close(self) -> None:
        """Not while a read is under way."""
        self._buffers.clear()
        self._shut()

    def _opened(self) -> _CachedPages | None:
        with self._lock:
            if not self._tried:
                self._tried = True
                try:
                    self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | _O_DIRECT)
                    self._pages = _CachedPages(self._descriptor)
                except (OSError, ValueError):  # a file system in memory, an empty file
                    self._shut()
            return self._pages

    def _shut(self) -> None:
        self._pages = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self) -> mmap.mmap:
        try:
            return self._buffers.pop()
        except IndexError:
            return mmap.mmap(-1, _BOUNCE)  # memory of its own, at the start of a page

    def _aligned(self, start: int, out: memoryview, edges: memoryview) -> int:
        """Whole pages straight to their place, the parts of the first and last by way of `edges`."""
        head, tail = -start % PAGE, (start + len(out)) % PAGE
        middle = len(out) - tail
        parts = [edges[:PAGE]] * (head > 0) + [out[head:middle]] + [edges[PAGE : 2 * PAGE]] * (tail > 0)
        before = PAGE - head if head else 0
        got = min(os.preadv(self._descriptor, parts, start - before) - before, len(out))
        if got <= 0:
            return 0
        out[: min(head, got)] = edges[before : before + min(head, got)]
        if got > middle:
            out[middle:got] = edges[PAGE : PAGE + got - middle]
        return got

    def _bounced(self, start: int, out: memoryview, whole: memoryview) -> int:
        done = 0
        while done < len(out):
            before = (start + done) % PAGE
            asked = min(_BOUNCE, -(-(before + len(out) - done) // PAGE) * PAGE)
            got = min(os.preadv(self._descriptor, [whole[:asked]], start + done - before) - before, len(out) - done)
            if got <= 0:
                break
            out[done : done + got] = whole[before : before + got]
            done += got
            if (start + done) % PAGE:
                break  # all of it, or the end of the file, or of what can be read of it
        return done


class _CachedPages:
    """Which pages of an open file are in the page cache. The system tells only who may write the file, else "all"."""

    def __init__(self, descriptor: int) -> None:
        # Never touched, so it costs addresses and no memory; private, so that nothing could be written to the file.
        self._mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        self._address = _address(memoryview(self._mapped))
        self._mincore = ctypes.CDLL(None, use_errno=True).mincore

    def hold(self, start: int, stop: int) -> bool:
        """Whether all of the bytes are there."""
        first, stop = start // PAGE, min(stop, len(self._mapped))
        count = -(-stop // PAGE) - first
        if count <= 0:
            return True
        found = ctypes.create_string_buffer(count)
        begin, length = ctypes.c_void_p(self._address + first * PAGE), ctypes.c_size_t(stop - first * PAGE)
        return self._mincore(begin, length, found) != 0 or not found.raw.translate(None, _CACHED)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
