"""Digests and spans of leaves do not depend on who takes them when."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF, block_digest, fold_blocks, leaf_digests, leaf_spans


def stored(leaves: float, itemsize: int) -> NDArray[np.uint8]:
    """Random bytes of so many leaves."""
    return np.random.default_rng(1).integers(0, 256, int(leaves * LEAF) * itemsize, dtype=np.uint8)


def test_leaves_are_65536_elements() -> None:
    """The size is part of what digests and facts mean: it never changes."""
    assert LEAF == 65_536


@given(st.integers(0, 5 * LEAF))
def test_leaf_spans_partition_a_run(count: int) -> None:
    """Every span but the last is a whole leaf."""
    spans = list(leaf_spans(count))
    assert [start for start, _ in spans] == list(range(0, count, LEAF))
    assert [stop for _, stop in spans] == [*range(LEAF, count, LEAF), count][: len(spans)]


@settings(max_examples=25)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.sampled_from([1, 2]))
def test_a_digest_does_not_depend_on_how_leaves_are_grouped(groups: list[int], itemsize: int) -> None:
    """However many leaves a step holds, a block's digest is the same."""
    raw = stored(3.25, itemsize)
    at, leaves = 0, []
    for group in [*groups, 99]:
        step = raw[at * LEAF * itemsize : (at + group) * LEAF * itemsize]
        leaves += leaf_digests(step, itemsize)
        at += group
    assert leaves == leaf_digests(raw, itemsize)
    assert block_digest(leaves) == block_digest(leaf_digests(raw, itemsize))


def test_digests_are_blake3_of_blake3() -> None:
    """The rule, written out: it is part of the index and of the plan."""
    raw = stored(1.5, 2)
    leaves = [blake3(raw[: LEAF * 2].tobytes()).digest(), blake3(raw[LEAF * 2 :].tobytes()).digest()]
    assert leaf_digests(raw, 2) == leaves
    assert block_digest(leaves) == int.from_bytes(blake3(leaves[0] + leaves[1]).digest()[:8], "little")


def test_a_digest_tells_bytes_and_their_order_apart() -> None:
    """One bit, or two leaves exchanged, give another digest."""
    raw = stored(2, 1)
    changed = raw.copy()
    changed[LEAF + 17] ^= 1
    leaves = leaf_digests(raw, 1)
    assert block_digest(leaf_digests(changed, 1)) != block_digest(leaves)
    assert block_digest(reversed(leaves)) != block_digest(leaves)


def test_no_bytes_have_the_digest_zero() -> None:
    """A block beyond what an expert covers has no bytes."""
    assert block_digest([]) == 0
    assert leaf_digests(np.empty(0, np.uint8), 2) == []


def test_a_fold_tells_which_blocks_and_what_they_hold() -> None:
    """Number, digest and order all count; the largest 64-bit digest fits."""
    top = (1 << 64) - 1
    folds = [fold_blocks(n, d) for n, d in [([], []), ([0], [top]), ([1], [top]), ([0], [1]), ([0, 1], [1, 2])]]
    folds.append(fold_blocks([0, 1], [2, 1]))
    assert len(set(folds)) == len(folds)
    flat = np.array([0, 1, 1, 2], "<u8").tobytes()
    assert fold_blocks([0, 1], [1, 2]) == blake3(flat).digest()[:16].hex()


def test_a_fold_wants_a_digest_for_each_block() -> None:
    """Lists of different lengths are a bug, not something to cut."""
    with pytest.raises(ValueError, match="zip"):
        fold_blocks([0, 1], [5])
