from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.arcee_fusion import OPERATORS
from mergepipe.operators.contract import AccessClass
from mergepipe.stats.contract import ImportanceNeed
from mergepipe.testing.operators import Example, OperatorContract, bits, combine, resolve, spec_of
from tests.operators import reference_coupled
from tests.operators.problems import NAMESPACES

(FUSION,) = OPERATORS
ONE = Example({}, ({},))


class TestArceeFusion(OperatorContract):
    operator = FUSION
    namespaces = NAMESPACES
    recipes = (ONE, ONE)


class TestArceeFusionOfAVector(OperatorContract):
    """A vector is one row."""

    operator = FUSION
    namespaces = NAMESPACES
    recipes = (ONE,)
    shape = (1_037,)


# Random numbers, not chosen ones: where importances are equal by design, the last bit of a divergence decides.
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 40), (6, 9), (3, 2), (40,), (5, 3, 4), (2, 1)]),
    st.sampled_from([1e-3, 0.1, 3.0]),
    st.sets(st.integers(1, 39), max_size=4),
    st.booleans(),
)
def test_bits_of_the_formula(seed: int, shape: tuple[int, ...], size: float, cuts: set[int], read: bool) -> None:
    """Any shape, size of the delta and tiles give the bits of the whole-tensor formula."""
    generator = np.random.default_rng(seed)
    base = generator.standard_normal(shape).astype(np.float32).ravel()
    delta = (generator.standard_normal(shape) * size).astype(np.float32).ravel()
    spec = spec_of(FUSION, ONE, base.size, shape=shape)
    coefficients = resolve(FUSION, spec, [delta], base)
    inside = sorted(cut for cut in cuts if cut < base.size)
    merged = combine(FUSION, coefficients, base, [delta], [read], inside)
    known = delta if read else np.zeros_like(delta)
    expected = reference_coupled.arcee_fusion(base, known, delta, shape[-1])
    assert np.array_equal(bits(merged), bits(expected))


def test_takes_over_what_stands_out() -> None:
    """A few changes of a row that diverges most are taken over, the rest of the tensor stays the base's."""
    base = np.zeros((8, 16), np.float32)
    delta = np.random.default_rng(2).uniform(0.001, 0.002, (8, 16)).astype(np.float32)
    delta[5, :3] = [2.0, -1.0, 1.5]
    spec = spec_of(FUSION, ONE, base.size, shape=base.shape)
    coefficients = resolve(FUSION, spec, [delta.ravel()], base.ravel())
    merged = combine(FUSION, coefficients, base.ravel(), [delta.ravel()], [True]).reshape(base.shape)
    assert np.array_equal(merged[5, :3], delta[5, :3])
    assert np.count_nonzero(merged) < 32
    assert np.count_nonzero(merged[5]) > np.count_nonzero(np.delete(merged, 5, axis=0).any(axis=1))


@pytest.mark.parametrize("shape", [(4, 1), (1,), (1, 1)])
def test_rows_without_a_divergence_are_taken_over(shape: tuple[int, ...]) -> None:
    """The softmax of a row of one element is 1 in both models: all importances are 0 and reach their threshold."""
    size = int(np.prod(shape))
    base, delta = np.zeros(size, np.float32), np.arange(1, size + 1, dtype=np.float32)
    coefficients = resolve(FUSION, spec_of(FUSION, ONE, size, shape=shape), [delta], base)
    assert combine(FUSION, coefficients, base, [delta], [True]).tolist() == delta.tolist()


def test_is_coupled_and_says_why() -> None:
    """No number is given where something is left out, and zero where nothing is."""
    assert FUSION.access is AccessClass.COUPLED
    delta = np.ones(4, np.float32)
    coefficients = resolve(FUSION, spec_of(FUSION, ONE, 4), [delta], delta)
    assert "arcee_fusion decides" in str(FUSION.bound(coefficients, np.array([[1.0]]), np.array([[False]])))
    assert np.array_equal(FUSION.bound(coefficients, np.array([[1.0]]), np.array([[True]])), [0.0])


def test_takes_one_model() -> None:
    """A second model beside the base is refused by name; rows are those of the last dimension."""
    two = spec_of(FUSION, Example({}, ({}, {})), 8)
    for ask in (FUSION.needs, FUSION.group_needs):
        with pytest.raises(RecipeError, match="arcee_fusion takes one model beside the base, found 2"):
            ask(two)
    with pytest.raises(RecipeError, match="found 2"):
        FUSION.resolve(two, [(), ()])
    assert FUSION.group_needs(spec_of(FUSION, ONE, 8, shape=(2, 4))) == (ImportanceNeed(4),)
    assert FUSION.group_needs(spec_of(FUSION, Example({}, ()), 8)) == ()
