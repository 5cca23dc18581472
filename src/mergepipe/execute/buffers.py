"""Tensors that are copied from the base: do the experts hold other values? Said, never merged."""

from __future__ import annotations

from collections.abc import Sequence

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

# Integer and boolean buffers are small; a larger one is reported as not compared.
_LARGEST = 16 << 20


def differing_buffers(base: Checkpoint, experts: Sequence[Checkpoint], names: Sequence[str], meter: Meter) -> list[str]:
    """Remarks on copied tensors whose bytes differ in an expert; reads are charged to VERIFY."""
    remarks = []
    own: dict[str, bytes] = {}
    for expert in experts:
        for name in names:
            mine, theirs = base.tensors[name], expert.tensors.get(name)
            if theirs is None:
                continue
            if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
                remarks.append(f"{expert.ref}: {name} is {theirs.dtype} {list(theirs.shape)}, the base's is copied")
            elif len(mine.extent) > _LARGEST:
                remarks.append(
                    f"{expert.ref}: {name} ({len(mine.extent):,} bytes) was not compared; the base's is copied"
                )
            else:
                if name not in own:
                    own[name] = _bytes(base, mine, meter)
                if own[name] != _bytes(expert, theirs, meter):
                    remarks.append(f"{expert.ref}: {name} holds other values than the base's, which is copied")
    return remarks


def _bytes(checkpoint: Checkpoint, tensor: TensorInfo, meter: Meter) -> bytes:
    store = open_store(checkpoint.url, meter, Purpose.VERIFY, checkpoint.ref)
    try:
        data = bytearray(len(tensor.extent))
        store.read_into(tensor.extent.key, tensor.extent.start, memoryview(data))
        return bytes(data)
    finally:
        store.close()
