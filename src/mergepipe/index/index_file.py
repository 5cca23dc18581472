"""The index file of a pair: block facts, cuts and sketches of all its tensors, as arrays under a JSON header."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.errors import StaleIndex
from mergepipe.index.filing import (
    InputState,
    Unusable,
    array_digests,
    array_file,
    input_state,
    read_arrays,
    read_header,
)
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Pair, TrimFacts
from mergepipe.stats.sketch import SKETCH

VERSION: Final = 1
_FORMAT: Final = "mergepipe-index"
DENSITIES: Final = tuple(number / 100 for number in range(1, 100))

# Name in the file → field, dtype. One number a block.
_BLOCK_ARRAYS: Final[Mapping[str, type[Any]]] = {
    "l2": np.float64, "linf": np.float64, "l1": np.float64, "nonzero": np.int64, "nonfinite": np.int64,
    "dot": np.float64, "digest": np.uint64,
}  # fmt: skip
_BASE_ARRAYS: Final[Mapping[str, type[Any]]] = {
    "l2": np.float64, "linf": np.float64, "nonfinite": np.int64, "digest": np.uint64,
}  # fmt: skip
_SKETCH_NAME: Final = "sketch"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A row of the tensor table: output name, base name and elements, expert name and covered elements, block size."""

    name: str
    base: str
    size: int
    expert: str
    elements: int
    block: int


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The JSON in an index file. `arrays` holds a digest of each array's bytes."""

    format: str
    version: int
    base: InputState
    expert: InputState
    tensors: tuple[TensorEntry, ...]
    arrays: dict[str, str] = field(hash=False)


def tensor_table(pair: Pair) -> tuple[TensorEntry, ...]:
    """The pair's tensors, in order."""
    return tuple(
        TensorEntry(t.name, t.base.name, t.base.elements, t.expert.name, t.elements, t.block) for t in pair.tensors
    )


def encode_index(pair: Pair, index: DeltaIndex, path: Path) -> tuple[bytes, DeltaIndex]:
    """The content of an index file, and the index as it will be when that is at `path`."""
    arrays = _arrays(pair, index)
    header = IndexHeader(
        format=_FORMAT,
        version=VERSION,
        base=replace(input_state(pair.base), content_digest=index.base_content_digest),
        expert=replace(input_state(pair.expert), content_digest=index.content_digest),
        tensors=tensor_table(pair),
        arrays=array_digests(arrays),
    )
    sketches = _Sketches(path, header.arrays[_SKETCH_NAME], _block_slices(pair))
    return array_file(header, arrays), replace(index, path=str(path), sketches=sketches)


def load_index(path: Path, pair: Pair) -> tuple[IndexHeader, DeltaIndex]:
    """Read an index file but for its sketches. Raises `Unusable` or `FileNotFoundError`."""
    header = read_header(path, _FORMAT, VERSION, IndexHeader)
    if header.tensors != tensor_table(pair):
        raise Unusable("it holds other tensors or another block grid")
    mine = [state.identity for state in (header.base, header.expert)]
    if mine != [input_state(each).identity for each in (pair.base, pair.expert)]:
        raise Unusable("it is of other models")
    slices = _block_slices(pair)
    blocks = sum(tensor.blocks for tensor in pair.tensors)
    shapes: dict[str, tuple[tuple[int, ...], type[Any]]] = {n: ((blocks,), k) for n, k in _BLOCK_ARRAYS.items()}
    shapes |= {f"base.{name}": ((blocks,), kind) for name, kind in _BASE_ARRAYS.items()}
    grid = (len(pair.tensors), len(DENSITIES))
    shapes |= {"trim.threshold": (grid, np.float64), "trim.cut": (grid, np.int64)}
    if header.arrays.keys() != {*shapes, _SKETCH_NAME}:
        raise Unusable("it does not have the arrays of an index")
    arrays = read_arrays(path, {name: header.arrays[name] for name in shapes})
    for name, (shape, kind) in shapes.items():
        if arrays[name].shape != shape or arrays[name].dtype != kind:
            raise Unusable(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
    index = DeltaIndex(
        blocks={n: BlockFacts(*(arrays[name][part] for name in _BLOCK_ARRAYS)) for n, part in slices.items()},
        base={n: BaseFacts(*(arrays[f"base.{name}"][part] for name in _BASE_ARRAYS)) for n, part in slices.items()},
        content_digest=header.expert.content_digest,
        base_content_digest=header.base.content_digest,
        path=str(path),
        trims={n: TrimFacts(arrays["trim.threshold"][row], arrays["trim.cut"][row]) for row, n in enumerate(slices)},
        sketches=_Sketches(path, header.arrays[_SKETCH_NAME], slices),
    )
    return header, index


class _Sketches(Mapping[str, NDArray[np.float32]]):
    """Sketches by base tensor, read from the index file when first asked for."""

    def __init__(self, path: Path, digest: str, slices: Mapping[str, slice]) -> None:
        self._path, self._digest, self._slices = path, digest, slices
        self._rows: NDArray[np.float32] | None = None

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        part = self._slices[name]
        if self._rows is None:
            try:
                self._rows = read_arrays(self._path, {_SKETCH_NAME: self._digest})[_SKETCH_NAME]
            except (OSError, Unusable) as error:
                raise StaleIndex(f"{self._path}: changed or removed since it was opened ({error}); run again") from None
        return self._rows[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)


def _block_slices(pair: Pair) -> dict[str, slice]:
    ends = np.cumsum([0, *(tensor.blocks for tensor in pair.tensors)]).tolist()
    return {tensor.name: slice(a, b) for tensor, (a, b) in zip(pair.tensors, pairwise(ends), strict=True)}


def _arrays(pair: Pair, index: DeltaIndex) -> dict[str, NDArray[Any]]:
    """The arrays of an index file, over all tensors in the pair's order."""
    names = [tensor.name for tensor in pair.tensors]
    arrays: dict[str, NDArray[Any]] = {}
    for array, kind in _BLOCK_ARRAYS.items():
        arrays[array] = _joined([getattr(index.blocks[name], array) for name in names], (0,), kind)
    for array, kind in _BASE_ARRAYS.items():
        arrays[f"base.{array}"] = _joined([getattr(index.base[name], array) for name in names], (0,), kind)
    arrays[_SKETCH_NAME] = _joined([index.sketches[name] for name in names], (0, SKETCH), np.float32)
    grid = (0, len(DENSITIES))
    arrays["trim.threshold"] = _joined([index.trims[name].threshold[None] for name in names], grid, np.float64)
    arrays["trim.cut"] = _joined([index.trims[name].cut[None] for name in names], grid, np.int64)
    return arrays


def _joined(parts: Sequence[NDArray[Any]], empty: tuple[int, ...], kind: type[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.concatenate([np.empty(empty, kind), *parts]), kind)
