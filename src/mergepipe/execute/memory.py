"""Bounded buffers: a fixed number of equal slabs, taken and given back."""

from __future__ import annotations

import mmap
import threading

import numpy as np
from numpy.typing import NDArray


class SlabPool:
    """`count` buffers of `size` bytes each, at the starts of pages, allocated as they are first needed and reused."""

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self._unmade = count
        self._free: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def try_take(self, count: int) -> list[NDArray[np.uint8]] | None:
        """`count` slabs, or None if fewer are free; all or nothing."""
        with self._lock:
            if len(self._free) + self._unmade < count:
                return None
            while len(self._free) < count:
                self._free.append(np.frombuffer(mmap.mmap(-1, self.size), np.uint8))
                self._unmade -= 1
            keep = len(self._free) - count
            taken = self._free[keep:]
            del self._free[keep:]
            return taken

    def give_back(self, slabs: list[NDArray[np.uint8]]) -> None:
        with self._lock:
            self._free += slabs
