"""Facts of a tensor's blocks, filled leaf by leaf in the order of the tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.leaves import block_digest
from mergepipe.index.model import BaseFacts, BlockFacts
from mergepipe.index.tiles import Leaf
from mergepipe.stats.accumulators import DeltaLeaves
from mergepipe.stats.runs import DeltaRun
from mergepipe.stats.sketch import SKETCH, SketchSigns


class BlockDigests:
    """Digests of blocks from those of their leaves, which come in order."""

    def __init__(self, blocks: int) -> None:
        self._digests = np.zeros(blocks, np.uint64)
        self._block = 0
        self._leaves: list[bytes] = []

    def add(self, block: int, leaf: bytes) -> None:
        if block != self._block:
            self._close()
            self._block = block
        self._leaves.append(leaf)

    def finish(self) -> NDArray[np.uint64]:
        self._close()
        return self._digests

    def _close(self) -> None:
        if self._leaves:
            self._digests[self._block] = block_digest(self._leaves)
            self._leaves.clear()


class BaseTable:
    """Facts of the base's blocks, filled leaf by leaf."""

    def __init__(self, blocks: int) -> None:
        self._sums = np.zeros((2, blocks))
        self._nonfinite = np.zeros(blocks, np.int64)
        self._digests = BlockDigests(blocks)

    def add(self, leaf: Leaf, square: float, largest: float, nonfinite: int, digest: bytes) -> None:
        """The next leaf; `square` is Σθ₀², `largest` max|θ₀| of what is finite."""
        self._sums[0, leaf.block] += square
        self._sums[1, leaf.block] = max(self._sums[1, leaf.block], largest)
        self._nonfinite[leaf.block] += nonfinite
        self._digests.add(leaf.block, digest)

    def facts(self) -> BaseFacts:
        return BaseFacts(np.sqrt(self._sums[0]), self._sums[1], self._nonfinite, self._digests.finish())


class DeltaTable:
    """Facts of one delta's blocks, filled leaf by leaf; blocks beyond what the expert covers stay zero."""

    def __init__(self, blocks: int) -> None:
        self._sums = np.zeros((3, blocks))
        self._largest = np.zeros(blocks)
        self._counts = np.zeros((2, blocks), np.int64)
        self._sketch = np.zeros((blocks, SKETCH))
        self._digests = BlockDigests(blocks)

    def add(self, leaf: Leaf, found: DeltaLeaves, place: int) -> None:
        block = leaf.block
        self._sums[:, block] += found.sums[place]
        self._largest[block] = max(self._largest[block], found.largest[place])
        self._counts[:, block] += found.counts[place]
        self._sketch[block] += found.sketch[place]

    def add_run(self, leaves: Sequence[Leaf], found: DeltaRun, signs: SketchSigns) -> None:
        """The next leaves, all finite. `np.add.at` adds one after another, as `add` would."""
        blocks = np.array([leaf.block for leaf in leaves])
        np.add.at(self._sums.T, blocks, found.sums)
        np.maximum.at(self._largest, blocks, found.largest)
        np.add.at(self._counts[0], blocks, found.nonzero)
        np.add.at(self._sketch, blocks, found.sketch * np.array([signs.leaf(leaf.number) for leaf in leaves]))

    def digest(self, leaf: Leaf, digest: bytes) -> None:
        self._digests.add(leaf.block, digest)

    def sketch(self) -> NDArray[np.float32]:
        return self._sketch.astype(np.float32)

    def facts(self) -> BlockFacts:
        square, absolute, dot = self._sums
        nonzero, nonfinite = self._counts
        return BlockFacts(np.sqrt(square), self._largest, absolute, nonzero, nonfinite, dot, self._digests.finish())
