"""The one place where bytes are counted and a budget can be refused."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from mergepipe.errors import BudgetExceeded
from mergepipe.store.contract import ByteStore, Purpose, Version


@dataclass(frozen=True, slots=True)
class Spent:
    """Bytes and requests charged so far, by purpose, and EXPERT bytes by source."""

    bytes: Mapping[Purpose, int]
    reads: Mapping[Purpose, int]
    by_source: Mapping[str, int]


@dataclass
class Meter:
    """Counts every byte before it is read; thread-safe.

    `limits` caps purposes, in bytes. A charge that would pass its cap raises `BudgetExceeded` and
    counts nothing. Nothing is ever refunded: a failed read has still been asked for.
    """

    limits: Mapping[Purpose, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = dict.fromkeys(Purpose, 0)
        self._reads = dict.fromkeys(Purpose, 0)
        self._by_source: dict[str, int] = {}

    def charge(self, purpose: Purpose, count: int, source: str, what: str) -> None:
        """Account for `count` bytes of `what` about to be requested from `source`."""
        with self._lock:
            limit = self.limits.get(purpose)
            spent = self._bytes[purpose]
            if limit is not None and spent + count > limit:
                raise BudgetExceeded(count, limit - spent, what)
            self._bytes[purpose] = spent + count
            self._reads[purpose] += 1
            if purpose is Purpose.EXPERT:
                self._by_source[source] = self._by_source.get(source, 0) + count

    def spent(self) -> Spent:
        """A snapshot."""
        with self._lock:
            return Spent(dict(self._bytes), dict(self._reads), dict(self._by_source))


class MeteredStore:
    """A store whose every read is charged first, for one purpose and one source."""

    def __init__(self, inner: ByteStore, meter: Meter, purpose: Purpose, source: str) -> None:
        self._inner, self._meter, self._purpose, self._source = inner, meter, purpose, source

    def version(self, key: str) -> Version:
        return self._inner.version(key)

    def read_into(self, key: str, start: int, out: memoryview) -> None:
        self._meter.charge(self._purpose, len(out), self._source, key)
        self._inner.read_into(key, start, out)

    def keys(self) -> tuple[str, ...]:
        return self._inner.keys()

    def close(self) -> None:
        self._inner.close()
