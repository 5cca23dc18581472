"""Elementary functions in plain arithmetic: nearly exact, and at their edges what they should be."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.elementary import portable_exp, portable_log

NEARLY = 4 * 2.0**-53


@given(st.lists(st.floats(-708, 709), min_size=1))
def test_exp_is_exact_to_a_few_last_places(values: list[float]) -> None:
    """Against the C library's, which is good to one."""
    found = portable_exp(np.array(values)).tolist()
    assert all(abs(mine / math.exp(value) - 1) <= NEARLY for mine, value in zip(found, values, strict=True))


@given(st.lists(st.floats(1e-300, 1e300), min_size=1))
def test_log_is_exact_to_a_few_last_places(values: list[float]) -> None:
    """The same; near 1 the error is relative to the result too."""
    found = portable_log(np.array(values)).tolist()
    for mine, value in zip(found, values, strict=True):
        assert abs(mine - math.log(value)) <= NEARLY * abs(math.log(value))


def test_edges() -> None:
    """exp(0) is 1, far below it is 0, far above infinite; log(1) is 0."""
    assert portable_exp(np.array([0.0, -0.0, -800.0, -np.inf, 800.0])).tolist() == [1.0, 1.0, 0.0, 0.0, np.inf]
    assert portable_log(np.array([1.0])).tolist() == [0.0]


@given(st.floats(-1e-6, 1e-6))
def test_log_near_one_keeps_its_accuracy(step: float) -> None:
    """A ratio close to 1, as of two nearly equal shares."""
    value = 1.0 + step
    assert abs(portable_log(np.array([value]))[0] - math.log(value)) <= NEARLY * abs(math.log(value))
