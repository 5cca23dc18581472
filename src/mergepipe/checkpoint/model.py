"""A checkpoint as a value: which tensor is where. It holds no handle, so nothing can read through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mergepipe.core.digest import digest_of
from mergepipe.core.dtypes import DType, dtype
from mergepipe.core.extents import Extent
from mergepipe.store.contract import Version


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. `dtype` is a safetensors code; `extent` is where its bytes are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    extent: Extent

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def storage(self) -> DType:
        return dtype(self.dtype)


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One weight file: its weak version and the SHA-256 of its header (length prefix and JSON)."""

    key: str
    version: Version
    header_digest: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One model directory, headers read.

    `ref` is what the user wrote, `url` the resolved directory, `tensors` are in file-then-offset
    order, `config` is config.json parsed ({} if there is none), `notes` are remarks for the report
    (an ignored stray weight file, say).
    """

    ref: str
    url: str
    tensors: Mapping[str, TensorInfo]
    files: tuple[WeightFile, ...]
    config: Mapping[str, Any] = field(hash=False)
    notes: tuple[str, ...] = ()

    @property
    def header_digest(self) -> str:
        """SHA-256 over all headers: names, dtypes, shapes and offsets, not values."""
        from_files = [[file.key, file.version.size, file.header_digest] for file in self.files]
        return digest_of(from_files)

    @property
    def payload_bytes(self) -> int:
        return sum(len(tensor.extent) for tensor in self.tensors.values())
