"""Padding rows of assembled tensors: the mean of all rows before, as each place presents them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.assembled import Assembled
from mergepipe.checkpoint.assembly import Assembler
from mergepipe.checkpoint.model import Checkpoint
from mergepipe.core.dtypes import decode
from mergepipe.core.leaves import LEAF
from mergepipe.errors import MemoryLimitTooSmall
from mergepipe.store.contract import Access, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store


def mean_rows(
    assembled: Assembled, models: Sequence[Checkpoint], meter: Meter, memory: int
) -> tuple[NDArray[np.float64], ...]:
    """Per place: the mean of its filled rows, of shape (row,).

    Rows are added one after another in float64, so that the sum does not depend on how they are read. Bytes are
    charged to INDEX. Raises `MemoryLimitTooSmall`.
    """
    filled, row = assembled.table.map.filled, assembled.row
    places = range(len(assembled.models))
    rows = max(1, LEAF // row)
    needed = rows * row * 8 * (len(places) + 5)
    if needed > memory:
        raise MemoryLimitTooSmall(f"the mean row of {assembled.tensors[0].name}", needed, memory)
    stores = [
        open_store(models[number].url, meter, Purpose.INDEX, models[number].ref, Access.SEQUENTIAL)
        for number in assembled.models
    ]
    sums = [np.zeros(row) for _ in places]
    try:
        assembler = Assembler(assembled, stores)
        for first in range(0, filled, rows):
            count = (min(first + rows, filled) - first) * row
            raws = {place: np.empty(count * assembled.kind(place).itemsize, np.uint8) for place in places}
            assembler.fill(first * row, first * row + count, raws)
            for place, raw in raws.items():
                values = decode(raw, assembled.kind(place), np.empty(count))
                for values_of_row in values.reshape(-1, row):
                    np.add(sums[place], values_of_row, out=sums[place])
    finally:
        for store in stores:
            store.close()
    return tuple(total / max(1, filled) for total in sums)


def padding_bytes(assembled: Assembled) -> int:
    """Bytes that `mean_rows` reads."""
    reads = zip(assembled.table.read_rows, assembled.tensors, strict=True)
    return sum(count * assembled.row * tensor.storage.itemsize for count, tensor in reads)
