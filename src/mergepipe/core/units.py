"""Byte sizes as people write them, and back."""

from __future__ import annotations

import re
from fractions import Fraction

from mergepipe.errors import UsageError

_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str, what: str = "size") -> int:
    """`"512MiB"`, `"5 GB"`, `"1048576"` → bytes (decimal units are powers of 1000).

    Raises `UsageError` for anything else; `what` names the option in its message.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{what}: {text!r} is not a size; write a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    return int(Fraction(match[1]) * factor)  # exact: 1.001 kB is 1001 bytes, which in floats it is not


def format_bytes(count: int) -> str:
    """`123456789` → `"117.7 MiB"`: for people; exact figures go into JSON."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
