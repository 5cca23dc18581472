"""Budgets as people write them, resolved to bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from mergepipe.core.units import parse_bytes
from mergepipe.errors import UsageError

_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*")
_FRACTION = re.compile(r"\s*(\d+\.\d*|\.\d+)\s*")
_BLOCKS = re.compile(r"\s*(\d+)\s*blocks?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Budget:
    """The most expert bytes execution may read.

    `cap` is in bytes, None where nothing is capped (100 % or more, or no budget). `blocks` further
    caps the number of (expert, block) pairs. `text` is what the user wrote.
    """

    text: str
    cap: int | None = None
    blocks: int | None = None


def parse_budget(text: str | None, full: int, block_bytes: int) -> Budget:
    """`"30%"`, `"2GiB"`, `"4096blocks"` or None against a full read of `full` bytes.

    A share is of `full`, rounded down; `n` blocks cap the bytes at `n · block_bytes`. Whatever
    reaches `full` lifts the cap. Raises `UsageError` for anything else.
    """
    if text is None:
        return Budget("100%")
    if match := _SHARE.fullmatch(text):
        share = Decimal(match[1]) / 100
        return Budget(text.strip(), None if share >= 1 else int(share * full))
    if match := _BLOCKS.fullmatch(text):
        blocks = int(match[1])
        return Budget(text.strip(), min(blocks * block_bytes, full), blocks)
    if _FRACTION.fullmatch(text):
        raise UsageError(f"--budget: {text!r} is ambiguous; write a share as {float(text) * 100:g}%")
    try:
        cap = parse_bytes(text, "--budget")
    except UsageError as error:
        raise UsageError(f"{error}, or a share such as 30%, or a number of blocks such as 4096blocks") from None
    return Budget(text.strip(), None if cap >= full else cap)
