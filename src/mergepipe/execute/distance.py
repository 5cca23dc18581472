"""How far two stored models are from each other, measured."""

from __future__ import annotations

import math

import numpy as np

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.core.dtypes import decode
from mergepipe.errors import IncompatibleModels
from mergepipe.store.contract import Access, ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

_TILE = 1 << 20


def stored_distance(left: Checkpoint, right: Checkpoint, meter: Meter) -> float:
    """‖θ_left − θ_right‖₂ in float64 over all float tensors; reads are charged to VERIFY.

    Raises `IncompatibleModels` if names or shapes differ.
    """
    for name in right.tensors:
        if name not in left.tensors:
            raise IncompatibleModels(f"{right.ref}: {name} is a tensor that {left.ref} has not")
    stores = [open_store(each.url, meter, Purpose.VERIFY, each.ref, Access.SEQUENTIAL) for each in (left, right)]
    total = 0.0
    try:
        for name, mine in left.tensors.items():
            theirs = right.tensors.get(name)
            if theirs is None or theirs.shape != mine.shape:
                raise IncompatibleModels(f"{right.ref}: {name} is not the tensor that {left.ref} has")
            if not mine.storage.is_float:
                continue
            for start in range(0, mine.elements, _TILE):
                count = min(_TILE, mine.elements - start)
                apart = _values(stores[0], mine, start, count) - _values(stores[1], theirs, start, count)
                total += float(np.sum(apart * apart))
    finally:
        for store in stores:
            store.close()
    return math.sqrt(total)


def _values(
    store: ByteStore, tensor: TensorInfo, start: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    size = tensor.storage.itemsize
    raw = np.empty(count * size, np.uint8)
    store.read_into(tensor.extent.key, tensor.extent.start + start * size, memoryview(raw))
    out = np.empty(count, np.float64)
    decode(raw, tensor.storage, out)
    return out
