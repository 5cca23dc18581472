"""One weight file written from front to back: the caller hands over bytes, other threads write, hash and sync them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.safetensors import header_bytes
from mergepipe.core.dtypes import dtype
from mergepipe.errors import OutputError

_SLOT: Final = 1 << 20
_SLOTS: Final = 8
_SYNC_EVERY: Final = 64 << 20
# Past the page cache a file is written several times as fast, and does not push the inputs out of it; of smaller
# files that is nothing. 0 where the system has no such writing.
_LEAST_DIRECT: Final = 8 << 20
_DIRECT: Final = getattr(os, "O_DIRECT", 0)

# What one open writer holds in memory, whatever it writes.
BUFFER_BYTES: Final = _SLOT * _SLOTS


def output_error(path: Path, error: OSError) -> OutputError:
    """An `OSError` met while writing `path`, with what to do about it."""
    advice = {
        errno.ENOSPC: "free space or choose an output on another file system",
        errno.EDQUOT: "your quota is used up: free space or choose another place",
        errno.EACCES: "choose an output you may write to",
        errno.EPERM: "choose an output you may write to",
        errno.EROFS: "the file system is read-only: choose another place",
        errno.EIO: "the device failed: check it before trying again",
        errno.EFBIG: "lower --shard-size",
    }.get(error.errno or 0, "check the output's file system")
    return OutputError(f"{path}: cannot be written: {error.strerror or error}; {advice}")


class ShardWriter:
    """Writes one safetensors file whose header is known: `entries` are `(name, dtype code, shape)` in file order.

        with ShardWriter(path, entries) as writer:
            writer.append(part)  # the tensors' bytes, in order, cut as one likes
            size, digest = writer.close()

    `append` copies into a ring of 8 slots of 1 MiB and returns: the caller may reuse its buffer at once, and
    waits only while the ring is full. Full slots are written by one thread and hashed by another (SHA-256
    releases the interpreter lock). Large files are written past the page cache where the file system can do so;
    else a third thread starts a data sync every 64 MiB, so that the last one is short. An error of those threads
    is raised by the next `append` or by `close`. `append` is not thread-safe.

    Leaving the block without a successful `close` removes the file: a shard exists whole or not at all.
    """

    def __init__(
        self,
        path: Path,
        entries: Sequence[tuple[str, str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        self._header = header_bytes(entries, {"format": "pt"} if metadata is None else metadata)
        self._ends = _ends(entries, len(self._header))
        self._size = self._ends[-1][1] if entries else len(self._header)
        self._position = 0
        self._slot: _Slot | None = None
        self._free: SimpleQueue[_Slot] = SimpleQueue()
        self._to_write: SimpleQueue[_Slot | None] = SimpleQueue()
        self._to_hash: SimpleQueue[_Slot | None] = SimpleQueue()
        self._to_sync: SimpleQueue[bool] = SimpleQueue()
        self._hash = hashlib.sha256()
        self._failure: OSError | None = None
        self._threads: list[threading.Thread] = []
        self._descriptor = -1
        self._complete = False

    def __enter__(self) -> Self:
        try:
            self._descriptor = _open(self._path, _DIRECT if self._size >= _LEAST_DIRECT else 0)
        except OSError as error:
            raise output_error(self._path, error) from error
        for _ in range(_SLOTS):
            self._free.put(_Slot())
        for work in (self._write_slots, self._hash_slots, self._sync):
            thread = threading.Thread(target=work, name=f"{work.__name__.strip('_')} {self._path.name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        try:
            self._append(np.frombuffer(self._header, np.uint8))
        except BaseException:  # __exit__ is not called when __enter__ fails
            self._abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._complete:
            self._abandon()

    def append(self, part: memoryview | NDArray[Any]) -> None:
        """Add bytes (a contiguous view or array of any dtype). Raises `OutputError`."""
        raw = part.reshape(-1).view(np.uint8) if isinstance(part, np.ndarray) else _as_bytes(part)
        if raw.size > self._size - self._position:
            raise OutputError(
                f"{self._path}: {self._position + raw.size:,} bytes came, the header promises {self._size:,}"
            )
        self._append(raw)

    def close(self) -> tuple[int, str]:
        """Make the file durable; its size and `"sha256:…"`. Raises `OutputError` if bytes are missing.

        The name's durability is the business of whoever syncs the directory.
        """
        if self._position != self._size:
            name = next(name for name, end in self._ends if self._position < end)
            raise OutputError(
                f"{self._path}: {self._position:,} bytes came, the header promises {self._size:,}; "
                f"tensor {name!r} is incomplete"
            )
        self._finish_threads()
        self._raise_failure()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise output_error(self._path, error) from error
        self._close_descriptor()
        self._complete = True
        return self._size, "sha256:" + self._hash.hexdigest()

    def _append(self, raw: NDArray[np.uint8]) -> None:
        done = 0
        while done < raw.size:
            if self._slot is None:
                self._slot = self._free.get()
                self._raise_failure()
            done += self._slot.fill(raw[done:])
            if self._slot.used == _SLOT:
                self._hand_over()
        self._position += raw.size

    def _hand_over(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None and slot.used:
            slot.holders = 2
            self._to_write.put(slot)
            self._to_hash.put(slot)

    def _write_slots(self) -> None:
        unsynced = 0
        while (slot := self._to_write.get()) is not None:
            if self._failure is None:
                try:
                    _write_all(self._descriptor, slot.view())
                except OSError as error:
                    self._failure = error
                unsynced += 0 if is_direct(self._descriptor) else slot.used
                if unsynced >= _SYNC_EVERY:
                    unsynced = 0
                    self._to_sync.put(True)
            self._release(slot)
        self._to_sync.put(False)

    def _hash_slots(self) -> None:
        while (slot := self._to_hash.get()) is not None:
            self._hash.update(slot.view())
            self._release(slot)

    def _sync(self) -> None:
        while self._to_sync.get():
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:  # the kernel reports a lost write once: it must not be lost here
                self._failure = self._failure or error

    def _release(self, slot: _Slot) -> None:
        if slot.let_go():
            self._free.put(slot)

    def _finish_threads(self) -> None:
        self._hand_over()
        self._to_write.put(None)
        self._to_hash.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _abandon(self) -> None:
        self._finish_threads()
        self._close_descriptor()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise output_error(self._path, self._failure) from self._failure


class _Slot:
    """1 MiB on its way to the file, held by the writing and the hashing thread."""

    __slots__ = ("_bytes", "_lock", "holders", "used")

    def __init__(self) -> None:
        # Of whole pages, as direct writing demands.
        self._bytes = np.frombuffer(mmap.mmap(-1, _SLOT), np.uint8)
        self._lock = threading.Lock()
        self.holders = 0
        self.used = 0

    def fill(self, raw: NDArray[np.uint8]) -> int:
        """Copy as much of `raw` as fits; how much that was."""
        count = min(raw.size, _SLOT - self.used)
        self._bytes[self.used : self.used + count] = raw[:count]
        self.used += count
        return count

    def view(self) -> memoryview:
        return self._bytes.data[: self.used]

    def let_go(self) -> bool:
        """One holder less; whether that was the last, which leaves the slot empty."""
        with self._lock:
            self.holders -= 1
            if self.holders == 0:
                self.used = 0
            return self.holders == 0


def _ends(entries: Sequence[tuple[str, str, tuple[int, ...]]], origin: int) -> list[tuple[str, int]]:
    """Each tensor's name and the position in the file where it ends."""
    ends = []
    for name, code, shape in entries:
        origin += math.prod(shape) * dtype(code).itemsize
        ends.append((name, origin))
    return ends


def _as_bytes(view: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _open(path: Path, direct: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | direct, 0o666)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)  # a file system that has pages only, such as tmpfs


def is_direct(descriptor: int) -> bool:
    """Whether what is written to an open file goes past the page cache."""
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT)


def _write_all(descriptor: int, view: memoryview) -> None:
    """Write all of `view`; from the first part on that is no whole number of pages, by way of the page cache."""
    while view:
        if len(view) % mmap.PAGESIZE:
            _through_the_cache(descriptor)
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not is_direct(descriptor):
                raise
            _through_the_cache(descriptor)  # a device of larger sectors


def _through_the_cache(descriptor: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if flags & _DIRECT:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
