"""Disks that log, die or fail at a chosen operation: wrappers around any `Disk`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mergepipe.publish.disk import Disk, partial_name


class Crash(BaseException):  # not an Exception: nothing in the package may survive it, as nothing survives kill -9
    """The process would be dead here."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a `Disk` method and the paths it was given."""

    name: str
    paths: tuple[Path, ...]


class RecordingDisk:
    """Logs every operation, in order, and passes it on.

    Subclasses override `around`, which is given the operation, what does it, and what does about half of it
    (nothing, where a file system does it whole or not at all).
    """

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.log: list[Operation] = []

    def around(self, action: Callable[[], None], half: Callable[[], None]) -> None:  # noqa: ARG002  # for subclasses
        action()

    def make_folder(self, path: Path) -> None:
        self._pass(Operation("make_folder", (path,)), lambda: self.inner.make_folder(path))

    def write_file(self, path: Path, data: bytes) -> None:
        self._pass(
            Operation("write_file", (path,)),
            lambda: self.inner.write_file(path, data),
            lambda: self.inner.append(partial_name(path), data[: len(data) // 2]),
        )

    def append(self, path: Path, data: bytes) -> None:
        self._pass(
            Operation("append", (path,)),
            lambda: self.inner.append(path, data),
            lambda: self.inner.append(path, data[: len(data) // 2]),
        )

    def sync_file(self, path: Path) -> None:
        self._pass(Operation("sync_file", (path,)), lambda: self.inner.sync_file(path))

    def sync_folder(self, path: Path) -> None:
        self._pass(Operation("sync_folder", (path,)), lambda: self.inner.sync_folder(path))

    def rename_new(self, source: Path, target: Path) -> None:
        self._pass(Operation("rename_new", (source, target)), lambda: self.inner.rename_new(source, target))

    def exchange(self, one: Path, other: Path) -> bool:
        done: list[bool] = []
        self._pass(Operation("exchange", (one, other)), lambda: done.append(self.inner.exchange(one, other)))
        return done[0]

    def remove_file(self, path: Path) -> None:
        self._pass(Operation("remove_file", (path,)), lambda: self.inner.remove_file(path))

    def remove_tree(self, path: Path) -> None:
        self._pass(
            Operation("remove_tree", (path,)), lambda: self.inner.remove_tree(path), lambda: self._remove_half(path)
        )

    def _pass(self, operation: Operation, action: Callable[[], None], half: Callable[[], None] = lambda: None) -> None:
        self.log.append(operation)
        self.around(action, half)

    def _remove_half(self, path: Path) -> None:
        files = sorted(each for each in path.rglob("*") if not each.is_dir())
        for each in files[: (len(files) + 1) // 2]:
            self.inner.remove_file(each)


class CrashingDisk(RecordingDisk):
    """Raises `Crash` once operation number `after` (from 1; 0: before the first) is done, and at every later one."""

    def __init__(self, inner: Disk, after: int) -> None:
        super().__init__(inner)
        self._after = after

    def around(self, action: Callable[[], None], half: Callable[[], None]) -> None:  # noqa: ARG002  # done or not done
        if len(self.log) <= self._after:
            action()
        if len(self.log) >= self._after:
            raise Crash


class TearingDisk(CrashingDisk):
    """Raises `Crash` in the middle of operation number `after`, and at every later one."""

    def around(self, action: Callable[[], None], half: Callable[[], None]) -> None:
        if len(self.log) < self._after:
            action()
            return
        if len(self.log) == self._after:
            half()
        raise Crash


class FailingDisk(RecordingDisk):
    """Does half of operation number `at` (from 1) and then raises `OSError(code)`; all others work."""

    def __init__(self, inner: Disk, at: int, code: int) -> None:
        super().__init__(inner)
        self._at, self._code = at, code

    def around(self, action: Callable[[], None], half: Callable[[], None]) -> None:
        if len(self.log) != self._at:
            action()
            return
        half()
        raise OSError(self._code, os.strerror(self._code))


class NoExchangeDisk(RecordingDisk):
    """A file system that cannot exchange two names."""

    def exchange(self, one: Path, other: Path) -> bool:
        super()._pass(Operation("exchange", (one, other)), lambda: None)
        return False
