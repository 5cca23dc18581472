"""Text of three kinds that every Python brings along: its source code, its manual, and Unicode's names."""

from __future__ import annotations

import sysconfig
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

from mergepipe.errors import SourceError

NAMES: Final = ("code", "manual", "names")

_HELD_OUT_EVERY: Final = 8
_ENOUGH: Final = 200_000  # bytes of training text

# Names made from a code point or a number say nothing a model could learn.
_NUMBERED: Final = ("CJK ", "HANGUL SYLLABLE", "TANGUT ", "NUSHU CHARACTER", "KHITAN ")
_CODE_POINTS: Final = range(0x20000)
_RUN: Final = 64  # code points a document


@dataclass(frozen=True, slots=True)
class Domain:
    """Documents of one kind: to train on, and others to measure with."""

    name: str
    train: tuple[bytes, ...]
    held_out: tuple[bytes, ...]


def domains() -> tuple[Domain, ...]:
    """The three domains. The text depends on the version of Python only.

    Raises `SourceError` where a Python was stripped of what is needed.
    """
    kinds = (_sources(), _manual(), _names())
    return tuple(_split(name, documents) for name, documents in zip(NAMES, kinds, strict=True))


def _split(name: str, documents: Iterable[str]) -> Domain:
    train: list[bytes] = []
    held_out: list[bytes] = []
    # Some topics of the manual are there twice, under two names.
    for number, document in enumerate(dict.fromkeys(documents)):
        raw = document.encode()
        (held_out if number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1 else train).append(raw)
    found = sum(map(len, train))
    if found < _ENOUGH or not held_out:
        raise SourceError(
            f"the demo's domain {name!r} has {found:,} bytes of text in this Python, {_ENOUGH:,} are needed: "
            "run it with a Python whose standard library is complete and there as source files"
        )
    return Domain(name, tuple(train), tuple(held_out))


def _sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="replace")


def _manual() -> Iterator[str]:
    for topic in sorted(topics):
        yield topics[topic]


def _names() -> Iterator[str]:
    for start in range(_CODE_POINTS.start, _CODE_POINTS.stop, _RUN):
        named = ((point, unicodedata.name(chr(point), "")) for point in range(start, start + _RUN))
        lines = [f"{point:04X} {name}\n" for point, name in named if name and not name.startswith(_NUMBERED)]
        if lines:
            yield "".join(lines)
