"""Tensors assembled from rows of several stored ones, as values: what is put together from what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.rows import RowTable
from mergepipe.core.dtypes import DType, dtype


@dataclass(frozen=True, slots=True)
class Assembled:
    """All inputs of one output tensor, assembled. Place p is tensor `tensors[p]` of model `models[p]`.

    `codes[p]` is the dtype that place p is presented in: its own where only such rows are in it, else one that
    holds all of them exactly. `padding[p]` is its padding row, of float64; none where nothing is padded.
    """

    table: RowTable = field(hash=False)
    models: tuple[int, ...]
    tensors: tuple[TensorInfo, ...]
    codes: tuple[str, ...]
    padding: tuple[NDArray[np.float64], ...] = field(default=(), hash=False)

    @property
    def row(self) -> int:
        """Elements of one row."""
        return self.tensors[0].elements // max(1, self.tensors[0].shape[0])

    @property
    def elements(self) -> int:
        return self.table.map.rows * self.row

    def kind(self, place: int) -> DType:
        return dtype(self.codes[place])


def presented(table: RowTable, stored: Sequence[str]) -> tuple[str, ...]:
    """The dtype each place is presented in: means and padding take float32, or float64 where a giver is so stored."""
    codes = []
    for place, own in enumerate(stored):
        lacking = table.own[place] < 0
        filled = lacking & (np.arange(lacking.size) < table.map.filled)
        givers = [code for other, code in enumerate(stored) if (filled & (table.given[other] >= 0)).any()]
        averaged = bool((table.givers[filled] > 1).any()) or table.map.filled < table.map.rows
        if not averaged and all(code == own for code in givers):
            codes.append(own)
        else:
            codes.append("F64" if "F64" in (own, *givers) else "F32")
    return tuple(codes)


@dataclass(frozen=True, slots=True)
class AssembledCheckpoint(Checkpoint):
    """A checkpoint no directory holds: its tensors are places of assembled ones.

    `parts` is by the key of a tensor's extent. Beside it, `sources` are the models, by number.
    """

    parts: Mapping[str, tuple[Assembled, int]] = field(default_factory=dict, hash=False)
    sources: Mapping[int, Checkpoint] = field(default_factory=dict, hash=False)
