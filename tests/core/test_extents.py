"""Merging byte runs costs no more than is allowed."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.extents import Extent, coalesce

Runs = list[tuple[int, int]]


@st.composite
def runs(draw: st.DrawFn) -> Runs:
    """Sorted disjoint runs; some touch."""
    found, at = [], draw(st.integers(0, 10))
    for between, length in draw(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30)), max_size=20)):
        found.append((at + between, at + between + length))
        at = found[-1][1]
    return found


def size(parts: Runs) -> int:
    """Bytes in all."""
    return sum(stop - start for start, stop in parts)


@given(runs(), st.integers(0, 25), st.integers(0, 60))
def test_every_run_is_covered_in_order_by_one_read(given_runs: Runs, gap: int, allowance: int) -> None:
    """Reads are sorted, disjoint, not touching, and each run lies within one of them; ends are ends of runs."""
    merged = coalesce(given_runs, gap, allowance)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
    for start, stop in given_runs:
        assert sum(a <= start and stop <= b for a, b in merged) == 1
    assert {a for a, _ in merged} <= {a for a, _ in given_runs}
    assert {b for _, b in merged} <= {b for _, b in given_runs}


@given(runs(), st.integers(0, 25), st.integers(0, 60))
def test_at_most_the_allowance_is_read_beside(given_runs: Runs, gap: int, allowance: int) -> None:
    """The gaps taken sum to at most the allowance, and none is wider than `gap`."""
    merged = coalesce(given_runs, gap, allowance)
    assert size(merged) - size(given_runs) <= allowance
    ends, starts = {b for _, b in merged}, {a for a, _ in merged}
    for (_, before), (after, _) in itertools.pairwise(given_runs):
        if before not in ends and after not in starts:
            assert after - before <= gap


@given(runs(), st.integers(0, 25), st.integers(0, 60))
def test_nothing_that_may_be_merged_stays_apart(given_runs: Runs, gap: int, allowance: int) -> None:
    """Two neighbours stay apart only if they are too far from each other or the allowance is used up."""
    merged = coalesce(given_runs, gap, allowance)
    left = allowance - (size(merged) - size(given_runs))
    for (_, before), (after, _) in itertools.pairwise(merged):
        assert after - before > min(gap, left)


@given(runs())
def test_touching_runs_always_merge(given_runs: Runs) -> None:
    """Without any allowance exactly the bytes of the runs are read, in as few reads as they form."""
    merged = coalesce(given_runs, 0, 0)
    assert size(merged) == size(given_runs)
    gaps = sum(before[1] < after[0] for before, after in itertools.pairwise(given_runs))
    assert len(merged) == (gaps + 1 if given_runs else 0)


def test_an_extent_is_as_long_as_its_bytes() -> None:
    """Half open."""
    assert len(Extent("model.safetensors", 10, 25)) == 15
