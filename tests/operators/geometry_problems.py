"""What the tests of the geometric methods share: shapes, closeness to a formula, and the error under a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mergepipe.operators.contract import Operator
from mergepipe.testing.operators import Example, combine, resolve, spec_of
from tests.operators.problems import Floats, Problem


def shapes(elements: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Every shape of one to three dimensions that holds this many elements."""
    pairs = [(n, elements // n) for n in range(1, elements + 1) if elements % n == 0]
    triples = [(a, n, b // n) for a, b in pairs for n in range(1, b + 1) if b % n == 0]
    return st.sampled_from([(elements,), *pairs, *triples])


def merge(
    operator: Operator, example: Example, base: Floats, deltas: Sequence[Floats], shape: tuple[int, ...]
) -> Floats:
    """The whole tensor, every expert read."""
    spec = spec_of(operator, example, base.size, wide=base.dtype == np.float64, shape=shape)
    return combine(operator, resolve(operator, spec, deltas, base), base, deltas, [True] * len(deltas))


def assert_close(
    operator: Operator, example: Example, problem: Problem, shape: tuple[int, ...], expected: Floats, within: float
) -> None:
    """Tile by tile, in float64 to `within` and in float32 to rounding, the result is the formula's.

    Both of the sum of the magnitudes of its terms, each at its largest coefficient.
    """
    for kind, unit in ((np.float64, within), (np.float32, 2.0**-20 + within)):
        base: Floats = problem.base.astype(kind)
        deltas: list[Floats] = [delta.astype(kind) for delta in problem.deltas]
        spec = spec_of(operator, example, base.size, wide=kind is np.float64, shape=shape)
        coefficients = resolve(operator, spec, deltas, base)
        merged = combine(operator, coefficients, base, deltas, [True] * len(deltas), problem.cuts)
        sizes = np.abs(base) * operator.base_gain(coefficients)
        for gain, delta in zip(operator.gains(coefficients), deltas, strict=True):
            sizes = sizes + gain * np.abs(delta)
        # In float64 too, below the smallest float32 there are no more digits to agree on.
        error = np.abs(merged.astype(np.longdouble) - expected)
        assert (error <= unit * (sizes + np.max(sizes, initial=0.0)) + 1e-37).all()


def assert_budgeted(operator: Operator, example: Example, problem: Problem, shape: tuple[int, ...]) -> None:
    """Reading part of the blocks errs by no more than the bound, with the coefficients of the full read."""
    base: Floats = problem.base.astype(np.float64)
    deltas: list[Floats] = [delta.astype(np.float64) for delta in problem.deltas]
    spec = spec_of(operator, example, base.size, wide=True, shape=shape)
    coefficients: Any = resolve(operator, spec, deltas, base)
    full = combine(operator, coefficients, base, deltas, [True] * len(deltas))
    known = [delta.copy() for delta in deltas]
    for delta, reads in zip(known, problem.reads, strict=True):
        for part, seen in zip(problem.parts, reads, strict=True):
            delta[part] *= seen
    partial = combine(operator, coefficients, base, known, [True] * len(deltas))
    bound = operator.bound(coefficients, problem.norms(deltas), problem.reads)
    assert not isinstance(bound, str)
    error = problem.norms([full - partial])[0]
    size = operator.base_gain(coefficients) * np.linalg.norm(base) + sum(
        gain * np.linalg.norm(delta) for gain, delta in zip(operator.gains(coefficients), deltas, strict=True)
    )
    assert (error <= bound * (1 + 1e-12) + 1e-14 * size).all()
