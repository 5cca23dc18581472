"""Random numbers belong to positions, not to turns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.random import keep_mask, mask_key, ranked_keep_mask, uniform16

KEY = mask_key(0, "dare", 0, "model.embed_tokens.weight")
PINNED_KEY = 0x55995D854230D077D11C9532968B6CB
PINNED = [
    60757,
    13455,
    22741,
    41642,
    46471,
    46236,
    41273,
    5336,
    54756,
    12151,
    51211,
    24749,
    16006,
    59554,
    6000,
    56663,
    58975,
    29979,
    47961,
    1326,
]
PINNED_FAR = [52602, 31679, 26906]


def test_keys_and_numbers_are_pinned() -> None:
    """The same seed gives the same mask in every release: replay depends on it."""
    assert KEY == PINNED_KEY
    assert uniform16(KEY, 0, 20).tolist() == PINNED
    assert uniform16(KEY, 1_000_003, 3).tolist() == PINNED_FAR


@given(st.integers(0, 5000), st.integers(0, 300))
def test_an_element_has_one_value_wherever_a_run_begins(start: int, count: int) -> None:
    """`uniform16(start, count)` is a cut of the whole sequence."""
    assert (uniform16(KEY, start, count) == WHOLE[start : start + count]).all()
    assert uniform16(KEY, start, count).size == count


@given(st.integers(0, 5000), st.integers(0, 300), st.floats(0, 1))
def test_a_mask_keeps_what_is_below_the_rounded_probability(start: int, count: int, probability: float) -> None:
    """`u < round(p · 65536)`, element by element."""
    kept = keep_mask(KEY, start, count, probability)
    assert (kept == (WHOLE[start : start + count].astype(int) < round(probability * 65536))).all()


def test_probability_zero_keeps_nothing_and_one_everything() -> None:
    """The ends are exact."""
    assert not keep_mask(KEY, 0, 70_000, 0.0).any()
    assert keep_mask(KEY, 0, 70_000, 1.0).all()


def test_every_part_of_the_key_counts() -> None:
    """Seed, use, expert and tensor each give another sequence, also where they only move a boundary."""
    parts = itertools.product([0, 1, 11], ["dare", "policy"], [0, 1, 11], ["a", "1a", "b"])
    keys = [mask_key(*part) for part in parts]
    assert len(set(keys)) == len(keys)
    assert not np.array_equal(uniform16(keys[0], 0, 64), uniform16(keys[1], 0, 64))


@pytest.mark.parametrize("key", [KEY, mask_key(7, "dare", 3, "x")])
def test_numbers_are_uniform(key: int) -> None:
    """Each of 64 equal bins holds its share within 5 standard deviations; neighbours are uncorrelated."""
    numbers = uniform16(key, 12345, 1 << 18)
    counts = np.bincount(numbers >> 10, minlength=64)
    expected = numbers.size / 64
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)
    centred = numbers.astype(np.float64) - 32767.5
    for lag in (1, 2, 4, 16):
        correlation = np.mean(centred[lag:] * centred[:-lag]) / np.var(centred)
        assert abs(correlation) < 5 / np.sqrt(numbers.size)


@pytest.mark.parametrize("probability", [0.01, 0.25, 0.9])
def test_masks_keep_their_share(probability: float) -> None:
    """The kept share is the probability within 5 standard deviations."""
    count = 1 << 18
    kept = int(keep_mask(KEY, 0, count, probability).sum())
    assert abs(kept - probability * count) < 5 * np.sqrt(count * probability * (1 - probability)) + count / 131072


WHOLE = uniform16(KEY, 0, 5300)


def ranked_the_plain_way(
    key: int, start: int, magnitudes: NDArray[np.floating[Any]], row: int, density: float, epsilon: float
) -> list[bool]:
    """Entry by entry: its rank in its row, the probability of that rank, its draw."""
    draws = uniform16(key, start, magnitudes.size).tolist()
    kept = []
    for place, magnitude in enumerate(magnitudes.tolist()):
        own = place - place % row
        others = magnitudes[own : own + row].tolist()
        rank = sum(other < magnitude or (other == magnitude and own + n < place) for n, other in enumerate(others))
        probability = density - epsilon + 2 * epsilon * (rank / (row - 1)) if row > 1 else density
        kept.append(draws[place] < round(probability * 65536))
    return kept


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@given(
    st.integers(0, 9),
    st.sampled_from([(1, 5), (4, 3), (7, 1), (16, 4), (33, 2)]),
    st.sampled_from([(0.5, 0.0), (0.5, 0.49), (0.3, 0.2), (0.999999, 0.0000001)]),
    st.integers(0, 2**32 - 1),
)
def test_ranked_masks_keep_by_rank(
    kind: type[np.floating[Any]], start: int, rows: tuple[int, int], share: tuple[float, float], seed: int
) -> None:
    """Each entry is kept by the probability of its rank in its row, the earlier of two equal ones ranked lower."""
    row, count = rows
    sizes = np.array([0.0, 1e-40, 0.5, 1.0, 3.0], kind)
    magnitudes = sizes[np.random.default_rng(seed).integers(0, sizes.size, row * count)]
    found = ranked_keep_mask(KEY, start * row, magnitudes, row, *share)
    assert found.tolist() == ranked_the_plain_way(KEY, start * row, magnitudes, row, *share)


@pytest.mark.parametrize("row", [1_000, 70_000])
def test_ranked_masks_belong_to_positions(row: int) -> None:
    """Rows taken together or one by one, more of them than are ranked at a time, have the same mask."""
    magnitudes = np.random.default_rng(3).random(140_000, np.float32)
    whole = ranked_keep_mask(KEY, 0, magnitudes, row, 0.5, 0.3)
    parts = [ranked_keep_mask(KEY, at, magnitudes[at : at + row], row, 0.5, 0.3) for at in range(0, 140_000, row)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert 0.45 < whole.mean() < 0.55


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_ranked_masks_rank_nan_highest(kind: type[np.floating[Any]]) -> None:
    """What is no number is ranked above all numbers in every dtype, so that masks exist for any input."""
    expected = ranked_keep_mask(KEY, 0, np.array([9.0, 1.0, 5.0, 0.0], kind), 4, 0.5, 0.49)
    assert np.array_equal(ranked_keep_mask(KEY, 0, np.array([np.nan, 1.0, np.inf, 0.0], kind), 4, 0.5, 0.49), expected)


def test_no_elements_have_no_ranked_mask() -> None:
    """An empty tensor is no error."""
    assert ranked_keep_mask(KEY, 0, np.empty(0, np.float32), 4, 0.5, 0.1).size == 0
