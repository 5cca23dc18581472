"""The array namespace operators compute in: numpy by default, or whatever module made the arrays.

Operators call only what numpy and torch spell alike (`xp.multiply(a, b, out=c)`), so one text of
the mathematics serves both, and elementwise IEEE operations give both the same bits.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

# A float32 or float64 array of numpy or of another library with numpy's spelling.
Array: TypeAlias = Any
Namespace: TypeAlias = Any


def namespace(array: Array) -> Namespace:
    """The module whose functions take `array`: numpy for ndarrays, else the array's own package."""
    if isinstance(array, np.ndarray):
        return np
    return sys.modules[type(array).__module__.partition(".")[0]]


class Scratch:
    """Reusable temporaries of one worker: asking for a name again gives the same memory.

    Sizes are in elements; every array has room for `capacity` and is returned cut to `count`.
    """

    def __init__(self, capacity: int, compute: np.dtype[Any], xp: Namespace = np) -> None:
        self.capacity = capacity
        self._xp = xp
        self._float = getattr(xp, compute.name)
        self._flag = np.bool_ if xp is np else xp.bool
        self._arrays: dict[str, Array] = {}

    def floats(self, name: str, count: int) -> Array:
        """`count` uninitialised elements of the compute dtype."""
        return self._get(name, self._float, count)

    def flags(self, name: str, count: int) -> Array:
        """`count` uninitialised booleans."""
        return self._get("?" + name, self._flag, count)

    def _get(self, name: str, kind: Any, count: int) -> Array:
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = self._xp.empty(self.capacity, dtype=kind)
        return array if count == self.capacity else array[:count]
