"""The compiled loops have the bits of the numpy ones, whose sums the tests of the accumulators write out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF
from mergepipe.stats.compiled import CompiledLoops
from mergepipe.stats.loops import LANES, PRODUCTS, TOP, Loops, NumpyLoops, quickest_loops
from mergepipe.stats.sketch import SketchSigns

SIGNS = SketchSigns().pattern
LOOPS: tuple[Loops, Loops] = NumpyLoops(), CompiledLoops()


def products(loops: Loops, delta: NDArray[Any], base: NDArray[np.float64]) -> tuple[float, int, int, bytes]:
    """All that `products` tells, sums as bytes; what the buffer held before must not show."""
    lanes = np.full((PRODUCTS, LANES), np.nan)
    return *loops.products(delta.copy(), base, SIGNS, lanes), lanes.tobytes()


def counted(loops: Loops, patterns: NDArray[Any]) -> tuple[bytes, bytes]:
    """The counters, from 7 each, and the irregular patterns."""
    counts = np.full(TOP, 7, np.uint32)
    irregular = np.empty(patterns.size + 1, patterns.dtype)
    found = loops.count(patterns, counts, irregular)
    return counts.tobytes(), irregular[:found].tobytes()


@st.composite
def leaves(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """A delta of any size up to a leaf, over all magnitudes, with zeros and at times what is not finite; a base."""
    count = draw(st.one_of(st.integers(1, 3 * LANES), st.sampled_from([LEAF, LEAF - 1])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    delta = (rng.standard_normal(count) * 10.0 ** rng.integers(-44, 38, count)).astype(kind)
    delta[rng.random(count) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = draw(st.sampled_from([0.0, -0.0]))
    odd = draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), max_size=3))
    delta[rng.integers(0, count, len(odd))] = odd
    return delta, rng.standard_normal(count).astype(np.float32).astype(np.float64)


@given(leaves())
def test_products_have_the_same_bits(leaf: tuple[NDArray[Any], NDArray[np.float64]]) -> None:
    """Sums, maximum and counts of any leaf."""
    with np.errstate(all="ignore"):
        assert products(LOOPS[0], *leaf) == products(LOOPS[1], *leaf)


@given(leaves())
def test_counts_are_the_same(leaf: tuple[NDArray[Any], NDArray[np.float64]]) -> None:
    """Counters and irregular patterns of any leaf, NaN's among them."""
    patterns = np.abs(leaf[0]).view(f"u{leaf[0].itemsize}")
    assert counted(LOOPS[0], patterns) == counted(LOOPS[1], patterns)


@pytest.mark.parametrize("loops", LOOPS, ids=["numpy", "compiled"])
def test_counts_are_those_of_the_definition(loops: Loops) -> None:
    """The upper 16 bits are counted; patterns with lower ones are listed in order."""
    patterns = np.array([0, 0x3F80_0000, 0x3F80_0001, 0x7FFF_FFFF, 0x3F80_0000, 5], np.uint32)
    counts, irregular = np.zeros(TOP, np.uint32), np.empty(7, np.uint32)
    assert loops.count(patterns, counts, irregular) == 3
    assert irregular[:3].tolist() == [0x3F80_0001, 0x7FFF_FFFF, 5]
    assert {place: int(counts[place]) for place in np.flatnonzero(counts).tolist()} == {0: 2, 0x3F80: 3, 0x7FFF: 1}


def test_without_numba_the_loops_are_numpys() -> None:
    """An installation without the extra works; with it the compiled ones are taken."""
    assert isinstance(quickest_loops(), CompiledLoops)
    program = """
import sys
sys.modules["numba"] = None
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
sys.meta_path.insert(0, Hidden())
del sys.modules["numba"]
from mergepipe.stats.loops import quickest_loops
print(type(quickest_loops()).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "NumpyLoops"
