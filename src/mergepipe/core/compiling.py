"""Modules compiled by numba, where it is there and works. Everything they do is done without them too."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any


@cache
def compiled_module(name: str) -> ModuleType | None:
    """The module of this name, whose functions numba compiles; None where they cannot be compiled.

    Says why in a warning, unless numba is not installed or was told not to compile.
    """
    try:
        numba: Any = import_module("numba")
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        return None
    except ImportError as error:  # it refuses versions of numpy that it does not know
        _warn(str(error))
        return None
    if numba.config.DISABLE_JIT:
        return None
    try:
        return import_module(name)
    except RuntimeError as error:  # neither the package's folder nor the user's cache can be written
        if "cannot cache function" not in str(error):
            raise
        _warn(f"{error}; set NUMBA_CACHE_DIR to a folder that can be written")
        return None


def _warn(reason: str) -> None:
    warnings.warn(f"going on without numba, slower: {reason}", RuntimeWarning, stacklevel=3)
