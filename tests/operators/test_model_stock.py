from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.model_stock import OPERATORS
from mergepipe.stats.contract import GramNeed, VectorGramNeed
from mergepipe.testing.operators import Example, OperatorContract, bits, spec_of
from tests.operators import reference_geometry as reference
from tests.operators.geometry_problems import assert_budgeted, assert_close, merge, shapes
from tests.operators.problems import NAMESPACES, Problem, problems

(MODEL_STOCK,) = OPERATORS


class TestModelStock(OperatorContract):
    operator = MODEL_STOCK
    namespaces = NAMESPACES
    recipes = (
        Example({}, ({}, {})),
        Example({}, ({}, {}, {}, {})),
        Example({"filter_wise": True}, ({}, {}, {})),
    )


@given(st.data(), problems(), st.booleans())
def test_is_the_formula(data: st.DataObject, problem: Problem, filter_wise: bool) -> None:
    """Whole and by rows of any shape: the formula's value, and an error within the bound."""
    assume(len(problem.deltas) >= 2)
    shape = data.draw(shapes(problem.base.size))
    base, *deltas = (reference.exact(each).reshape(shape) for each in (problem.base, *problem.deltas))
    models = [base + delta for delta in deltas]
    stock = reference.by_vector(lambda vectors: reference.model_stock(vectors[0], vectors[1:]), [base, *models], -1)
    if not filter_wise:
        stock = reference.model_stock(base.reshape(-1), [model.reshape(-1) for model in models])
    example = Example({"filter_wise": filter_wise}, ({},) * len(deltas))
    # Near the pole of t the last bits of the cosines decide.
    assume(np.abs(stock).max() < 1e3)
    assert_close(MODEL_STOCK, example, problem, shape, stock, 1e-9)
    assert_budgeted(MODEL_STOCK, example, problem, shape)


def test_equal_and_orthogonal_task_vectors() -> None:
    """Fine-tunes that agree are taken as they are; ones at right angles leave the base."""
    base = np.array([1.0, 2.0, -0.0, 0.5], np.float32)
    delta = np.array([0.5, -0.25, 0.0, 0.125], np.float32)
    example = Example({}, ({}, {}))
    assert np.array_equal(merge(MODEL_STOCK, example, base, [delta, delta], ()), base + delta)
    across = [np.array([0.5, 0, 0, 0], np.float32), np.array([0, 0.5, 0, 0], np.float32)]
    assert np.array_equal(bits(merge(MODEL_STOCK, example, base, across, ())), bits(base))


def test_opposite_task_vectors_give_the_base() -> None:
    """Where the ratio has a pole the base is kept, bit for bit, and not divided by zero."""
    base = np.array([1.0, -0.0, 0.5], np.float32)
    delta = np.array([0.5, -0.25, 0.125], np.float32)
    merged = merge(MODEL_STOCK, Example({}, ({}, {})), base, [delta, -delta], ())
    assert np.array_equal(bits(merged), bits(base))


def test_rows_for_themselves() -> None:
    """By rows, one row's agreement does not move another: a row the models disagree on stays the base's."""
    base = np.arange(6, dtype=np.float32)
    deltas = [np.array([1, 1, 1, 1, 0, 0], np.float32), np.array([1, 1, 1, 0, 1, 0], np.float32)]
    merged = merge(MODEL_STOCK, Example({"filter_wise": True}, ({}, {})), base, deltas, (2, 3))
    assert np.array_equal(merged, base + np.array([1, 1, 1, 0, 0, 0], np.float32))


def test_needs_by_shape() -> None:
    """By rows it asks for inner products of each row; a tensor of one dimension is one row."""
    rows = Example({"filter_wise": True}, ({}, {}))
    assert MODEL_STOCK.group_needs(spec_of(MODEL_STOCK, rows, 12, shape=(3, 4))) == (VectorGramNeed(-1),)
    assert MODEL_STOCK.group_needs(spec_of(MODEL_STOCK, rows, 12, shape=(12,))) == (GramNeed(),)
    assert MODEL_STOCK.group_needs(spec_of(MODEL_STOCK, Example({}, ({}, {})), 12, shape=(3, 4))) == (GramNeed(),)


@pytest.mark.parametrize("terms", [0, 1])
def test_wants_two_fine_tunes(terms: int) -> None:
    """Fewer than two models beside the base have no angle: refused with the number found."""
    spec = spec_of(MODEL_STOCK, Example({}, ({},) * terms), 4)
    with pytest.raises(RecipeError, match=rf"at least two models with the base, found {terms}"):
        MODEL_STOCK.group_needs(spec)
