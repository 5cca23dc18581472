"""What an index pass learns of a run of whole leaves in one call, where that is quicker than leaf by leaf.

The facts are those that `mergepipe.stats.accumulators` and `mergepipe.stats.loops` fix, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.compiling import compiled_module
from mergepipe.core.leaves import LEAF
from mergepipe.stats.loops import TOP, Bits, Wide

# Leaves of a run at most.
RUN: Final = 8
# What one worker's `Runs` take: irregular patterns of two leaves, counts of two records, four tables, the signs
# and the |δ| of a leaf; groups of rows, their sums, and facts.
RUNS_BYTES: Final = (2 + 1 + 1) * LEAF * 4 + 2 * TOP * 4 + 4 * TOP * 2 + (1 << 17)


@dataclass(frozen=True, slots=True, eq=False)
class BaseRun:
    """Σθ₀² and max|θ₀| of each leaf of a run; neither means anything where the latter is not finite."""

    squares: Wide
    largest: Wide


@dataclass(frozen=True, slots=True, eq=False)
class Closed:
    """A record that a leaf completed: counts of the upper 16 bits, of 0 and from `lowest` on, at most `largest`."""

    zero: int
    lowest: int
    counts: NDArray[np.uint32]
    largest: int


@dataclass(frozen=True, slots=True, eq=False)
class DeltaRun:
    """Facts of the first leaves of a run of δ; all arrays are overwritten by the next call.

    `sums` holds Σδ², Σ|δ| and Σθ₀δ, `sketch` the sums by bucket with the signs of the places in the leaf;
    neither means anything where `largest`, max|δ|, is not finite. `irregular` are each leaf's patterns that have
    bits below the upper 16, `closed` the records that were completed.
    """

    sums: Wide
    sketch: Wide
    largest: Wide
    nonzero: NDArray[np.int64]
    irregular: Sequence[Bits]
    closed: Sequence[Closed | None]

    @property
    def leaves(self) -> int:
        return len(self.irregular)

    def only(self, number: int) -> DeltaRun:
        """One of the leaves."""
        one = slice(number, number + 1)
        sums, sketch, largest = self.sums[one], self.sketch[one], self.largest[one]
        return DeltaRun(sums, sketch, largest, self.nonzero[one], self.irregular[one], self.closed[one])


class Runs(Protocol):
    """One worker's calls, for tensors stored as bfloat16. `ends` are where up to `RUN` leaves end, the first at 0."""

    def base(self, raw: NDArray[np.uint8], ends: NDArray[np.int64]) -> BaseRun:
        """Facts of the base's leaves."""

    def delta(
        self,
        raw: NDArray[np.uint8],
        base: NDArray[np.uint8],
        ends: NDArray[np.int64],
        closes: NDArray[np.bool_],
        counts: NDArray[np.uint32],
        totals: NDArray[np.int64],
    ) -> DeltaRun:
        """Facts of an expert's leaves minus the base's, of as many leaves as there is room for, at least one.

        A delta's patterns are added to `counts`, the record under way, which a leaf that `closes` it adds to
        `totals` and sets to zero.
        """

    def sizes(self, raw: NDArray[np.uint8], base: NDArray[np.uint8]) -> NDArray[np.float32]:
        """|δ| of at most a leaf; `base` may be longer. Overwritten by the next call."""


def no_runs() -> Runs | None:
    """Leaves are worked through one by one."""
    return None


def quickest_runs() -> Runs | None:
    """For one worker, where numba is installed."""
    compiled = compiled_module("mergepipe.stats.compiled_runs")
    return None if compiled is None else compiled.CompiledRuns()
