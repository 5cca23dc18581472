"""Sizes and SHA-256 of files that were written before, read back in bounded memory."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mergepipe.manifest.model import FileRecord
from mergepipe.store.contract import Access, ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

_BUFFER = 1 << 20


def open_for_verifying(folder: Path, meter: Meter) -> ByteStore:
    """The files below `folder`; what is read of them is charged as VERIFY."""
    return open_store(str(folder), meter, Purpose.VERIFY, "output", Access.SEQUENTIAL)


def read_whole(store: ByteStore, name: str) -> bytes:
    """A small file's bytes. Raises `SourceError` if it is not readable."""
    data = bytearray(store.version(name).size)
    store.read_into(name, 0, memoryview(data))
    return bytes(data)


def found_record(store: ByteStore, name: str) -> FileRecord:
    """The file `name` as it is now, hashed through one buffer. Raises `SourceError` if it is not readable."""
    size = store.version(name).size
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(size, _BUFFER)))
    for start in range(0, size, _BUFFER):
        part = buffer[: min(_BUFFER, size - start)]
        store.read_into(name, start, part)
        digest.update(part)
    return FileRecord(name, size, "sha256:" + digest.hexdigest())
