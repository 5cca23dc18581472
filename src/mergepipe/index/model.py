"""The index as a value, and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need


@dataclass(frozen=True, slots=True)
class PairTensor:
    """One tensor of the base and the expert tensor merged into it.

    The expert covers the first `elements` elements of the base tensor (all of them, but for a
    vocabulary whose common rows only are merged); beyond, its delta is zero. `block` is the grid's
    block size in elements of the base tensor. `name` is the output tensor's: one base tensor may go
    into several.
    """

    base: TensorInfo
    expert: TensorInfo
    elements: int
    block: int
    name: str

    @property
    def blocks(self) -> int:
        return -(-self.base.elements // self.block)


@dataclass(frozen=True, slots=True)
class Pair:
    """A base, one expert and how their tensors correspond. `source` names the expert for the meter."""

    base: Checkpoint
    expert: Checkpoint
    source: str
    tensors: tuple[PairTensor, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A need of one expert tensor: `pair` is a position in the list of pairs, `tensor` a `PairTensor.name`."""

    pair: int
    tensor: str
    need: Need


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """A need of several expert tensors together: of the pairs at these positions, the tensors of one name."""

    pairs: tuple[int, ...]
    tensor: str
    need: GroupNeed


@dataclass(frozen=True, slots=True, eq=False)
class BaseFacts:
    """Per block of a base tensor: ‖θ₀‖₂, max|θ₀|, non-finite count, digest of its bytes (64 bits)."""

    l2: NDArray[np.float64]
    linf: NDArray[np.float64]
    nonfinite: NDArray[np.int64]
    digest: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockFacts:
    """Per block of a delta: ‖δ‖₂, max|δ|, ‖δ‖₁, nonzero and non-finite counts, ⟨θ₀,δ⟩, digest of the expert's bytes.

    A block whose delta is zero everywhere has `nonzero == 0`. Non-finite elements are left out of
    the sums and of the maximum.
    """

    l2: NDArray[np.float64]
    linf: NDArray[np.float64]
    l1: NDArray[np.float64]
    nonzero: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    dot: NDArray[np.float64]
    digest: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class TrimFacts:
    """Of a whole delta, at the densities 0.01, 0.02, … 0.99: the exact threshold and the cut (see `TrimNeed`)."""

    threshold: NDArray[np.float64]
    cut: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DeltaIndex:
    """All facts of one (base, expert, grid), by base tensor name.

    `sketches[name]` is of shape (blocks, SKETCH) in float32, loaded only when asked for.
    `content_digest` is over all block digests of the expert, `base_content_digest` of the base.
    `path` is the index file, "" where none is kept.
    """

    blocks: Mapping[str, BlockFacts]
    base: Mapping[str, BaseFacts]
    content_digest: str
    base_content_digest: str
    path: str
    trims: Mapping[str, TrimFacts] = field(default_factory=dict)
    sketches: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What `ensure` found or computed.

    `indices` has one entry per pair where block facts were wanted, else is empty. `facts` answers
    every `Wanted`. `index_bytes` is what was read for it now; `reused` and `built` name index files.
    `notes` say why an index file that was there could not be used.
    """

    indices: Sequence[DeltaIndex] = field(default=(), hash=False)
    facts: Mapping[Wanted, Fact] = field(default_factory=dict, hash=False)
    group_facts: Mapping[WantedGroup, GroupFact] = field(default_factory=dict, hash=False)
    index_bytes: int = 0
    reused: tuple[str, ...] = ()
    built: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Arrays = Mapping[str, NDArray[Any]]
