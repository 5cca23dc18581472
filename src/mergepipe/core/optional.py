"""Libraries that may not be installed, and what is built on them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def module_with(library: str, module: str) -> ModuleType | None:
    """The package's `module`, which imports `library`; None where that is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        return None
