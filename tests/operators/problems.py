"""What the tests of merge methods share: awkward tensors by Hypothesis, and the array libraries at hand."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from mergepipe.operators.contract import Operator
from mergepipe.testing.operators import Example, bits, combine, resolve, spec_of

Floats = NDArray[np.floating[Any]]
T = TypeVar("T")

# torch is needed by the demo only; where it is installed, operators must agree with it.
NAMESPACES: tuple[Any, ...] = (
    (np, importlib.import_module("torch")) if importlib.util.find_spec("torch") is not None else (np,)
)

# Few distinct values: equal magnitudes, cancelling sums and zeros of both signs are the rule, not the exception.
_COARSE = st.sampled_from([0.0, -0.0, 0.125, -0.125, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0])
_FINE = st.floats(-8, 8, width=32, allow_nan=False)
MOST_TERMS = 6


def six(values: st.SearchStrategy[T]) -> st.SearchStrategy[list[T]]:
    """A value for each of as many experts as a problem can have; often one value for all."""
    return st.lists(values, min_size=MOST_TERMS, max_size=MOST_TERMS) | st.builds(lambda v: [v] * MOST_TERMS, values)


WEIGHTS = six(st.sampled_from([1.0, 0.5, 0.3, 1 / 3, 0.0, -0.4, -1.0]) | st.floats(-2, 2))
POSITIVE = six(st.sampled_from([1.0, 0.5, 0.3, 0.0]) | st.floats(0.001, 3))
DENSITIES = six(st.sampled_from([0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1))
LAMBDAS = st.sampled_from([1.0, 0.5, -0.7, 0.0]) | st.floats(-2, 2)


@dataclass(frozen=True, slots=True)
class Problem:
    """A base, deltas, where the tensor is cut, and which parts of which delta are read.

    `read[i]` is for whole tensors, `reads[i][b]` for the parts that the cuts make.
    """

    base: Floats
    deltas: list[Floats]
    cuts: list[int]
    read: list[bool]
    reads: NDArray[np.bool_]

    @property
    def parts(self) -> list[slice]:
        edges = [0, *self.cuts, self.base.size]
        return [slice(start, stop) for start, stop in pairwise(edges)]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Elements of each part."""
        return np.array([part.stop - part.start for part in self.parts], np.int64)

    def norms(self, rows: Sequence[Floats]) -> NDArray[np.float64]:
        """‖row‖₂ over each part, of shape (rows, parts)."""
        return np.array([[np.linalg.norm(row[part].astype(np.float64)) for part in self.parts] for row in rows])


@st.composite
def problems(draw: st.DrawFn, most_terms: int = MOST_TERMS, row: int = 1) -> Problem:
    """One to six experts, 1 to 70 rows of `row` elements, any subset read, any split between rows."""
    rows = draw(st.integers(1, 70 if row == 1 else 8))
    size = rows * row
    terms = draw(st.integers(1, most_terms))
    tensor = hnp.arrays(np.float32, size, elements=_COARSE) | hnp.arrays(np.float32, size, elements=_FINE)
    cuts = [row * cut for cut in sorted(draw(st.sets(st.integers(1, rows - 1), max_size=4)))] if rows > 1 else []
    return Problem(
        base=draw(tensor),
        deltas=[draw(tensor) for _ in range(terms)],
        cuts=cuts,
        read=draw(st.lists(st.booleans(), min_size=terms, max_size=terms) | st.just([True] * terms)),
        reads=draw(hnp.arrays(np.bool_, (terms, len(cuts) + 1))),
    )


def row_problems() -> st.SearchStrategy[tuple[int, Problem]]:
    """Problems of one to eight rows, with the length of a row."""
    return st.sampled_from([1, 2, 3, 7, 16]).flatmap(lambda row: st.tuples(st.just(row), problems(row=row)))


# The formula on base and sparsified deltas; the sparsifying of one expert's delta.
Formula = Callable[[Floats, list[Floats]], Floats]
Sparsify = Callable[[int, Floats], Floats]


def whole(_term: int, delta: Floats) -> Floats:
    """The `Sparsify` of methods that keep deltas as they are."""
    return delta


def assert_bits(
    operator: Operator, example: Example, problem: Problem, sparsify: Sparsify, formula: Formula, row: int = 0
) -> None:
    """The operator, tile by tile, gives the bits of the whole-tensor formula in float32. `row` 0: a vector."""
    spec = spec_of(operator, example, problem.base.size, seed=5, shape=_shape(problem, row))
    coefficients = resolve(operator, spec, problem.deltas, problem.base)
    merged = combine(operator, coefficients, problem.base, problem.deltas, problem.read, problem.cuts)
    known = [
        sparsify(term, delta) if seen else np.zeros_like(delta)
        for term, (delta, seen) in enumerate(zip(problem.deltas, problem.read, strict=True))
    ]
    expected = formula(problem.base, known)
    assert expected.dtype == np.float32
    assert np.array_equal(bits(merged), bits(expected))


def assert_bounded(
    operator: Operator, example: Example, problem: Problem, sparsify: Sparsify, formula: Formula, row: int = 0
) -> None:
    """In every part the formula's error, in float64, of reading only part of the deltas is within the bound."""
    spec = spec_of(operator, example, problem.base.size, seed=5, wide=True, shape=_shape(problem, row))
    base, deltas = problem.base.astype(np.float64), [delta.astype(np.float64) for delta in problem.deltas]
    coefficients = resolve(operator, spec, deltas, base)
    bound = operator.bound(coefficients, problem.norms(deltas), problem.reads, problem.sizes)
    assert not isinstance(bound, str)
    sparse = [sparsify(term, delta) for term, delta in enumerate(deltas)]
    known = [delta.copy() for delta in sparse]
    for delta, reads in zip(known, problem.reads, strict=True):
        for part, seen in zip(problem.parts, reads, strict=True):
            delta[part] *= seen
    error = problem.norms([formula(base, sparse) - formula(base, known)])[0]
    # The two sums are float64 themselves.
    slack = 1e-14 * (problem.norms([base])[0] + problem.norms([np.abs(sparse).sum(axis=0) * 1e3])[0])
    assert (error <= bound * (1 + 1e-12) + slack).all()


def _shape(problem: Problem, row: int) -> tuple[int, ...]:
    return (problem.base.size // row, row) if row else (problem.base.size,)
