"""The comparison itself: it notices what it should, and excludes no more than it says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.parity.compare import (
    ambiguous_ranks,
    ambiguous_row_ranks,
    distance,
    drawn_elections,
    near,
    ulp,
)


def floats(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A float32 array."""
    return np.array(values, np.float32)


@pytest.mark.parametrize("magnitude", [1.0, 1.5, 1.9999999, 2.0, 3e-5, 1e30, 1e-40])
def test_ulp_is_the_spacing_of_numbers(magnitude: float) -> None:
    """For float32 and bfloat16 alike, subnormal numbers included."""
    value = np.float32(magnitude)
    assert ulp(floats(magnitude), "float32")[0] == np.spacing(value)
    rounded = ml_dtypes.bfloat16(magnitude)
    assert ulp(np.array([float(rounded)]), "bfloat16")[0] == float(np.spacing(rounded))


def test_64_ulps_of_float32_are_near_65_are_not() -> None:
    """The limit is where it is said to be, at the magnitude of the largest element involved."""
    base, mine = floats(1.0, 1.0), floats(0.5, 1.0)
    step = 2.0**-23
    assert distance([base], mine, mine + floats(0, 64 * step), "float32").within
    found = distance([base], mine, mine + floats(0, 65 * step), "float32")
    assert not found.within
    assert (found.where, found.worst) == (1, 65.0)


def test_cancellation_is_measured_against_what_was_subtracted() -> None:
    """A small result of large inputs may be off by their rounding; one of small inputs may not."""
    mine, theirs = floats(1e-6), floats(1e-6 + 5e-7)
    assert distance([floats(1.0)], mine, theirs, "float32").within
    assert not distance([floats(1e-6)], mine, theirs, "float32").within


def test_one_ulp_of_bfloat16_is_near_two_are_not() -> None:
    """bfloat16 results differ by at most a last place of their own magnitude."""
    mine = floats(0.75)
    step = 2.0**-8
    assert distance([floats(0.7)], mine, mine + np.float32(step), "bfloat16").within
    assert not distance([floats(0.7)], mine, mine + np.float32(2 * step), "bfloat16").within
    # A base that is larger grants no larger a step, beyond what float32 may be off.
    assert not distance([floats(100.0)], mine, mine + np.float32(2 * step), "bfloat16").within


def test_nan_is_never_near() -> None:
    """Neither a NaN against a number nor one against another NaN counts as agreement."""
    nan = floats(np.nan)
    assert not distance([floats(1.0)], nan, floats(1.0), "float32").within
    assert not distance([floats(1.0)], nan, nan, "float32").within
    assert not distance([floats(1.0)], floats(np.inf), floats(np.inf), "bfloat16").within


def test_excluded_elements_do_not_count() -> None:
    """What is excluded may be anything; the rest is still compared, and counted."""
    mine, theirs = floats(1.0, 2.0), floats(9.0, 2.0)
    found = distance([mine], mine, theirs, "float32", np.array([True, False]))
    assert (found.within, found.compared) == (True, 1)
    assert not distance([mine], mine, theirs, "float32", np.array([False, True])).within


def test_ties_at_the_edge_of_a_trim_only() -> None:
    """Equal magnitudes are ambiguous where some are kept and some not; not where all fall on one side."""
    values = floats(1, 2, 2, 2, 3, 3, 4)
    assert ambiguous_ranks(values, 2, 7).tolist() == [False, True, True, True, False, False, False]
    assert not ambiguous_ranks(values, 1, 7).any()
    assert ambiguous_ranks(values, 1, 5).tolist() == [False, False, False, False, True, True, False]
    assert not ambiguous_ranks(values, 0, 7).any()
    assert not ambiguous_ranks(floats(0, 0, 0, 1), 1, 4).any()  # which zeros are kept makes no difference


def test_ties_of_a_row() -> None:
    """Only repetitions within a row make its ranks ambiguous; a vector is one row."""
    assert ambiguous_row_ranks(floats(1, 2, 1, 3).reshape(2, 2)).tolist() == [False] * 4
    assert ambiguous_row_ranks(floats(1, 1, 2, 3).reshape(2, 2)).tolist() == [True, True, False, False]
    assert ambiguous_row_ranks(floats(5, 1, 5, 2)).tolist() == [True, False, True, False]
    assert not ambiguous_row_ranks(floats(0, 0, 1)).any()


def test_near_a_threshold() -> None:
    """Relative to the threshold, on both sides; a value's own noise comes on top."""
    values = floats(0.9, 0.99, 1.01, 1.1)
    assert near(values, 1.0, 0.05).tolist() == [False, True, True, False]
    assert near(values, 1.0, 0.05, floats(0.1, 0, 0, 0)).tolist() == [True, True, True, False]


def test_elections_that_rounding_decides() -> None:
    """Three votes that cancel; not two, which every order adds up alike, nor votes that do not cancel."""
    third = floats(0.1, 1.0), floats(0.2, 1.0), floats(-0.3, 1.0)
    assert drawn_elections(list(third)).tolist() == [True, False]
    assert drawn_elections([floats(0.5), floats(-0.5)]).tolist() == [False]
    assert drawn_elections([floats(0.0)] * 3).tolist() == [False]
