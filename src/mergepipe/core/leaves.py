"""Leaves: fixed runs of 65,536 elements in which bytes are hashed and facts are summed.

A block's digest is over its leaf digests, counted from the block's start, so that workers may take
leaves in any order and a span of any number of leaves gives the same digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.digest import bytes_digest

LEAF = 65_536


def leaf_spans(count: int) -> Iterator[tuple[int, int]]:
    """`[start, stop)` of each leaf of a run of `count` elements."""
    for start in range(0, count, LEAF):
        yield start, min(start + LEAF, count)


def leaf_digests(raw: NDArray[np.uint8], itemsize: int) -> list[bytes]:
    """BLAKE3 of each leaf of `raw`, a run of stored elements that starts at a leaf's start."""
    size = LEAF * itemsize
    return [bytes_digest(memoryview(raw[start : start + size])) for start in range(0, raw.size, size)]


def block_digest(leaves: Iterable[bytes]) -> int:
    """64 bits that identify a block's bytes, from its leaf digests in order; 0 if there are none."""
    joined = b"".join(leaves)
    return int.from_bytes(bytes_digest(joined)[:8], "little") if joined else 0


def fold_blocks(numbers: Iterable[int], digests: Iterable[int]) -> str:
    """One digest for a set of blocks of a tensor: numbers and block digests in ascending order."""
    flat = np.asarray([part for pair in zip(numbers, digests, strict=True) for part in pair], dtype="<u8")
    return bytes_digest(flat.tobytes())[:16].hex()
