"""Runs of leaves have the bits of leaves worked through one by one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.dtypes import decode, dtype
from mergepipe.core.leaves import LEAF
from mergepipe.stats.accumulators import BaseLeaves, DeltaBatch
from mergepipe.stats.compiled_runs import CompiledRuns
from mergepipe.stats.loops import LANES, TOP, NumpyLoops, Tally
from mergepipe.stats.runs import RUN, Runs, no_runs, quickest_runs
from mergepipe.stats.sketch import SketchSigns

BF16 = dtype("BF16")
SIGNS = SketchSigns()
RUNS: Runs = CompiledRuns()
LOOPS = NumpyLoops()

# Leaves of a run: short ones, whole ones, and what is neither a row nor a group of rows.
SIZES = st.lists(st.one_of(st.integers(1, 3 * LANES), st.sampled_from([LEAF, LEAF - 1])), min_size=1, max_size=RUN)


@st.composite
def models(draw: st.DrawFn) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]]:
    """Stored bytes of an expert and of a base, and the sizes of their leaves."""
    sizes = draw(SIZES)
    count = sum(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    base = (rng.standard_normal(count) * 10.0 ** rng.integers(-40, 37, count)).astype(BF16.numpy)
    change = draw(st.sampled_from([0.0, 1e-3, 1.0]))
    with np.errstate(all="ignore"):
        expert = (base.astype(np.float64) * (1 + change * rng.standard_normal(count))).astype(BF16.numpy)
    expert[rng.random(count) < draw(st.sampled_from([0.0, 0.5]))] = draw(st.sampled_from([0.0, -0.0]))
    for odd in draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=2)):
        model = draw(st.sampled_from([base, expert]))
        model[rng.integers(0, count)] = odd
    return expert.view(np.uint8), base.view(np.uint8), sizes


def values(raw: NDArray[np.uint8]) -> NDArray[np.floating[Any]]:
    """Stored bytes as float32."""
    return decode(raw, BF16, np.empty(raw.size // 2, np.float32))


@given(models(), st.data())
def test_facts_of_deltas_have_the_same_bits(
    model: tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]], data: st.DataObject
) -> None:
    """Sums, sketches, maxima, counts, irregular patterns and records of every leaf."""
    expert, base, sizes = model
    closes = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    counts, totals = np.full(TOP, 3, np.uint32), np.full(TOP, 5, np.int64)
    tally, expected_totals = Tally(counts.copy(), np.empty(LEAF + 1, np.uint32)), totals.copy()
    batch, leaves = DeltaBatch(1, SIGNS), BaseLeaves()
    done = 0
    while done < len(sizes):
        begin = sum(sizes[:done])
        ends = np.cumsum(sizes[done:])
        run = RUNS.delta(expert[2 * begin :], base[2 * begin :], ends, np.array(closes[done:]), counts, totals)
        assert 1 <= run.leaves <= len(sizes) - done
        for number in range(run.leaves):
            only = run.only(number)
            start = sum(sizes[: done + number])
            part = slice(2 * start, 2 * (start + sizes[done + number]))
            with np.errstate(all="ignore"):
                theirs = values(base[part])
                products = batch.products(leaves.add(theirs).values)
                look = LOOPS.leaf(expert[part], BF16, theirs, np.dtype(np.float32), tally, products)
                assert np.isfinite(only.largest[0]) == (look.nonfinite == 0)
                batch.add(look.largest, look.nonzero, look.nonfinite)
            found = batch.finish(number)
            if look.nonfinite == 0:
                assert only.sums.tobytes() == found.sums.tobytes()
                assert (only.sketch * SIGNS.leaf(number)).tobytes() == found.sketch.tobytes()
                assert only.largest.tobytes() == found.largest.tobytes()
                assert only.nonzero[0] == found.counts[0, 0]
            assert only.irregular[0].tobytes() == tally.irregular[: look.irregular].tobytes()
            closed = only.closed[0]
            assert (closed is not None) == closes[done + number]
            if closed is not None:
                first, beyond, largest = LOOPS.close(tally.counts, expected_totals)
                assert (closed.zero, closed.lowest, closed.largest) == (tally.counts[0], first, largest)
                assert closed.counts.tobytes() == tally.counts[first:beyond].tobytes()
                tally.counts.fill(0)
        done += run.leaves
    assert (counts == tally.counts).all()
    assert (totals == expected_totals).all()


@given(models())
def test_facts_of_bases_have_the_same_bits(model: tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]]) -> None:
    """The sum of squares and the maximum, where all is finite."""
    base, _, sizes = model
    run, leaves = RUNS.base(base, np.cumsum(sizes)), BaseLeaves()
    for number, size in enumerate(sizes):
        start = sum(sizes[:number])
        with np.errstate(all="ignore"):
            known = leaves.add(values(base[2 * start : 2 * (start + size)]))
        assert np.isfinite(run.largest[number]) == (known.nonfinite == 0)
        if known.nonfinite == 0:
            assert (run.squares[number], run.largest[number]) == (known.square, known.largest)


@given(models())
def test_sizes_have_the_same_bits(model: tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]]) -> None:
    """|δ| of a leaf, whose NaNs are alike."""
    expert, base, sizes = model
    part = slice(0, 2 * sizes[0])
    with np.errstate(all="ignore"):
        expected = np.abs(values(expert[part]) - values(base[part]))
    found = RUNS.sizes(expert[part], base)
    assert (
        np.where(np.isnan(found), np.nan, found).tobytes() == np.where(np.isnan(expected), np.nan, expected).tobytes()
    )


def test_without_numba_there_are_none() -> None:
    """An installation without the extra goes leaf by leaf."""
    assert isinstance(quickest_runs(), CompiledRuns)
    assert no_runs() is None
    program = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
sys.meta_path.insert(0, Hidden())
from mergepipe.stats.runs import quickest_runs
print(quickest_runs())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
