"""Byte geometry: half-open runs of bytes within one file, and how to merge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Bytes whose memory lies as far into a page as they do in their file can be read without a copy. No device asks for
# a larger alignment.
PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes `[start, stop)` of the file `key`."""

    key: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def coalesce(runs: Sequence[tuple[int, int]], gap: int, allowance: int) -> list[tuple[int, int]]:
    """Merge sorted disjoint `[start, stop)` runs; pure.

    Touching runs always merge. Runs at most `gap` apart merge while the gaps taken so far sum to at
    most `allowance`, smallest position first, so the result covers at most `allowance` bytes more.
    """
    merged: list[tuple[int, int]] = []
    for start, stop in runs:
        if merged:
            between = start - merged[-1][1]
            if between == 0 or (between <= gap and between <= allowance):
                allowance -= between
                merged[-1] = (merged[-1][0], stop)
                continue
        merged.append((start, stop))
    return merged
