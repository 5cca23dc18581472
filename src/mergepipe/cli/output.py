"""Results go to stdout, as lines or as one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


def print_lines(lines: Iterable[str]) -> None:
    """Text for people."""
    for line in lines:
        sys.stdout.write(line + "\n")


def print_json(value: Any) -> None:
    """One object for programs; never NaN."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
