"""Canonical JSON and content digests.

Identities (plans, outputs, manifests) use SHA-256, which Hub and registries speak; bytes read from
inputs use BLAKE3, which keeps up with a disk. Both are strong.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import blake3
import msgspec


def canonical_json(value: Any) -> bytes:
    """One value, one byte string: sorted keys, no spaces, UTF-8, shortest floats; no NaN or infinity."""
    plain = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """`"sha256:…"` of a value's canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def bytes_digest(data: bytes | memoryview) -> bytes:
    """32 bytes of BLAKE3 of `data`."""
    return blake3.blake3(data).digest()


class ChainDigest:
    """A running BLAKE3 over labelled parts, fed in one fixed order."""

    def __init__(self) -> None:
        self._hash = blake3.blake3()

    def label(self, text: str) -> None:
        """Separate what follows from what came before."""
        encoded = text.encode()
        self._hash.update(len(encoded).to_bytes(8, "little") + encoded)

    def feed(self, part: bytes | memoryview) -> None:
        self._hash.update(part)

    def text(self) -> str:
        return "blake3:" + self._hash.hexdigest()
