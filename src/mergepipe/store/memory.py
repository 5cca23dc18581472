"""A dictionary as a store, for tests and small derived inputs."""

from __future__ import annotations

from collections.abc import Mapping

from mergepipe.errors import SourceError
from mergepipe.store.contract import Version


class MemoryStore:
    """`{key: bytes}` as a `ByteStore`."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)

    def version(self, key: str) -> Version:
        return Version(len(self._get(key)), 0, 0, 0)

    def read_into(self, key: str, start: int, out: memoryview) -> None:
        part = self._get(key)[start : start + len(out)]
        if len(part) < len(out):
            raise SourceError(f"{key}: ends at byte {start + len(part):,}, {len(out) - len(part):,} bytes early")
        out[:] = part

    def keys(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def close(self) -> None:
        """Nothing is held."""

    def _get(self, key: str) -> bytes:
        try:
            return self._files[key]
        except KeyError:
            raise SourceError(f"{key}: no such file in memory") from None
