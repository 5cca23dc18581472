"""The nearest known name, for error messages about names that people type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Below this similarity a suggestion confuses more than it helps ("fp16" for "float16" is 0.55).
_CUTOFF = 0.54


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, whatever the case and with `-` as `_`; None if none is near.

    Equal similarities are broken by the order of the names themselves, so the answer does not
    depend on the order of `known`.
    """
    by_key = {_key(each): each for each in sorted(known)}
    matches = difflib.get_close_matches(_key(name), by_key, n=1, cutoff=_CUTOFF)
    return by_key[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`'; did you mean "weight"?'`, or nothing where no known name is near: the tail of a message."""
    found = nearest(name, known)
    return f'; did you mean "{found}"?' if found else ""


def _key(name: str) -> str:
    return name.strip().casefold().replace("-", "_").replace(" ", "_")
