"""What a store of bytes must do, and why bytes are read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Purpose(str, Enum):
    """Why bytes are read. Only EXPERT counts against the budget; all are metered and reported."""

    HEADER = "header"
    INDEX = "index"
    BASE = "base"
    EXPERT = "expert"
    SIDECAR = "sidecar"
    VERIFY = "verify"


class Access(str, Enum):
    """How a handle will be used, so that the store can avoid reading ahead what nobody asked for."""

    RANGED = "ranged"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one state of a stored file from another without reading it.

    Locally: size in bytes, modification and change times in nanoseconds, inode. A weak fingerprint.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class ByteStore(Protocol):
    """Read-only access to files under one root. Keys are relative POSIX paths."""

    def version(self, key: str) -> Version:
        """Raises `SourceError` if `key` is not a readable regular file."""
        ...

    def read_into(self, key: str, start: int, out: memoryview) -> None:
        """Fill all of `out` from byte `start` of `key`. Raises `SourceError` if the file ends before."""
        ...

    def keys(self) -> tuple[str, ...]:
        """All regular files below the root, sorted; links are followed, hidden folders are not."""
        ...

    def close(self) -> None: ...
