"""Every method on what is left of a merge at its edges: one element, none, no difference, one expert."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mergepipe.core.arrays import Scratch
from mergepipe.operators import registry
from mergepipe.operators.contract import Number, Operator, Parameter, Tile
from mergepipe.testing.operators import Example, bits, combine, resolve, spec_of
from tests.operators.problems import Floats

OPERATORS = [registry.operator(name, each) for name in registry.names() for each in registry.variants(name)]
ALL = pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.version)
# How many experts to try methods with that do not take any number.
COUNTS = {
    "arcee_fusion": (1,), "nearswap": (1,), "passthrough": (1,), "slerp": (1,), "nuslerp": (2,), "model_stock": (2, 3),
}  # fmt: skip
# Values that a parameter without a default is given, and those that are worth trying beside the default.
GIVEN: dict[str, Number] = {"weight": 0.5, "t": 0.25}
TRIED: dict[str, tuple[Number, ...]] = {
    "density": (0.0, 0.5, 1.0),
    "gamma": (0.0, 1.0),
    "select_topk": (0.0, 0.5),
    "rescale": (True, False),
    "epsilon": (0.0,),
}


def examples(operator: Operator, terms: int) -> Iterator[Example]:
    """The defaults, then each parameter worth trying at each of its values."""
    merge, model = ([each for each in operator.parameters if each.per_model is own] for own in (False, True))

    def given(parameters: list[Parameter]) -> dict[str, Number | str]:
        return {each.name: GIVEN[each.name] for each in parameters if each.default is None}

    yield Example(given(merge), (given(model),) * terms)
    for parameter in operator.parameters:
        for value in TRIED.get(parameter.name, ()):
            own = {parameter.name: value}
            if parameter.per_model:
                yield Example(given(merge), (given(model) | own,) * terms)
            else:
                yield Example(given(merge) | own, (given(model),) * terms)


@ALL
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (5,), (2, 3)])
def test_experts_equal_to_the_base_change_nothing(operator: Operator, shape: tuple[int, ...]) -> None:
    """Deltas of zeros, of either sign, give the base's bits, whatever the parameters."""
    size = int(np.prod(shape))
    base = np.resize(np.array([1.5, -0.0, 0.0, -2.0], np.float32), size)
    for terms in COUNTS.get(operator.name, (1, 3)):
        for example in examples(operator, terms):
            for zero in (0.0, -0.0):
                deltas: list[Floats] = [np.full(size, zero, np.float32)] * terms
                coefficients = resolve(operator, spec_of(operator, example, size, shape=shape), deltas, base)
                merged = combine(operator, coefficients, base, deltas, [True] * terms)
                if operator.copies_unread(coefficients):
                    assert np.array_equal(bits(merged), bits(base))
                assert np.isfinite(merged).all()


@ALL
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_element_is_a_tensor(operator: Operator, shape: tuple[int, ...]) -> None:
    """A tensor of one element is merged to a finite number, whatever the parameters."""
    base = np.array([2.0], np.float32)
    for terms in COUNTS.get(operator.name, (1, 3)):
        for example in examples(operator, terms):
            deltas: list[Floats] = [np.array([0.5 + number], np.float32) for number in range(terms)]
            coefficients = resolve(operator, spec_of(operator, example, 1, shape=shape), deltas, base)
            assert np.isfinite(combine(operator, coefficients, base, deltas, [True] * terms)).all()


@ALL
def test_an_empty_tile_is_no_error(operator: Operator) -> None:
    """A tile of no elements has an empty result."""
    base = np.ones(6, np.float32)
    terms = COUNTS.get(operator.name, (3,))[-1]
    for example in examples(operator, terms):
        deltas: list[Floats] = [np.full(6, 1.0 + number, np.float32) for number in range(terms)]
        coefficients = resolve(operator, spec_of(operator, example, 6, shape=(2, 3)), deltas, base)
        writers = [lambda _out: None] * terms
        nothing = np.empty(0, np.float32)
        operator.combine(Tile(6, 0, nothing, writers, Scratch(1, nothing.dtype)), coefficients, nothing)
        assert nothing.size == 0
