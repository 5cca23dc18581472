"""What the tests of merge methods share: awkward tensors by Hypothesis, and the array libraries at hand."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# torch is needed by the demo only; where it is installed, operators must agree with it.
NAMESPACES: tuple[Any, ...] = (
    (np, importlib.import_module("torch")) if importlib.util.find_spec("torch") is not None else (np,)
)

# Few distinct values: equal magnitudes, cancelling sums and zeros of both signs are the rule, not the exception.
_COARSE = st.sampled_from([0.0, -0.0, 0.125, -0.125, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0])
_FINE = st.floats(-8, 8, width=32, allow_nan=False)
WEIGHTS = st.sampled_from([1.0, 0.5, 0.3, 1 / 3, 0.0, -0.4, -1.0]) | st.floats(-2, 2)
POSITIVE_WEIGHTS = st.sampled_from([1.0, 0.5, 0.3, 0.0]) | st.floats(0.001, 3)
DENSITIES = st.sampled_from([0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1)
LAMBDAS = st.sampled_from([1.0, 0.5, -0.7, 0.0]) | st.floats(-2, 2)


@dataclass(frozen=True, slots=True)
class Problem:
    """A base, deltas, which of them are read, and where the tensor is cut into tiles."""

    base: Floats
    deltas: list[Floats]
    read: list[bool]
    cuts: list[int]

    @property
    def seen(self) -> list[Floats]:
        """The deltas as the result may know them: zeros where unread."""
        return [
            delta if seen else np.zeros_like(delta) for delta, seen in zip(self.deltas, self.read, strict=True)
        ]

    def exact(self) -> tuple[Floats, list[Floats]]:
        """Base and all deltas in float64."""
        return self.base.astype(np.float64), [delta.astype(np.float64) for delta in self.deltas]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """One to six experts and one to 70 elements, any subset read, any split into tiles."""
    size = draw(st.integers(1, 70))
    terms = draw(st.integers(1, 6))
    tensor = hnp.arrays(np.float32, size, elements=_COARSE) | hnp.arrays(np.float32, size, elements=_FINE)
    return Problem(
        base=draw(tensor),
        deltas=[draw(tensor) for _ in range(terms)],
        read=draw(st.lists(st.booleans(), min_size=terms, max_size=terms) | st.just([True] * terms)),
        cuts=sorted(draw(st.sets(st.integers(1, size - 1), max_size=4))) if size > 1 else [],
    )


def choices(draw: st.DrawFn, values: st.SearchStrategy[Any], problem: Problem) -> list[Any]:
    """One value for each expert of a problem."""
    count = len(problem.deltas)
    same = st.builds(lambda value: [value] * count, values)
    chosen: list[Any] = draw(st.lists(values, min_size=count, max_size=count) | same)
    return chosen
