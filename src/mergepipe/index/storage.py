"""The shelf: index files, and files of further facts, found again by what they were made from.

docs/index.md describes the format. A file is used only if headers and file versions are those it
records, or if its block digests were found again in the bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import filelock
import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.core.digest import bytes_digest, digest_of
from mergepipe.errors import OutputError, StaleIndex
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Pair, TrimFacts
from mergepipe.stats.contract import (
    BandL1Need,
    Fact,
    MaskedL1Need,
    Need,
    RankedMaskL1Need,
    RankNeed,
    TrimmedL1Need,
    TrimNeed,
)
from mergepipe.stats.sketch import SKETCH
from mergepipe.store.contract import Version

VERSION: Final = 1
_FORMAT: Final = "mergepipe-index"
_FACTS_FORMAT: Final = "mergepipe-facts"
_HEADER: Final = "mergepipe"
_HEADER_DIGEST: Final = "mergepipe.digest"
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

_NEEDS: Final[Mapping[str, type[Any]]] = {
    each.__name__: each
    for each in (TrimNeed, MaskedL1Need, RankNeed, RankedMaskL1Need, TrimmedL1Need, BandL1Need)
}  # fmt: skip
_KEY: Final = "key"


@dataclass(frozen=True, slots=True)
class FileState:
    """A weight file when the index was made."""

    key: str
    version: Version


@dataclass(frozen=True, slots=True)
class InputState:
    """A checkpoint when the index was made. `content_digest` is over the block digests of what was indexed."""

    ref: str
    url: str
    header_digest: str
    files: tuple[FileState, ...]
    content_digest: str = ""


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


@dataclass(frozen=True, slots=True)
class StoredFact:
    """One fact of one tensor. `need` is the class name, `parameters` its fields, keys of masks in hexadecimal."""

    tensor: str
    need: str
    parameters: dict[str, float | int | str] = field(hash=False)
    fact: dict[str, float | int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class FactsFile:
    """The JSON file of further facts. `digest` is over all the rest."""

    format: str
    version: int
    base: InputState
    expert: InputState
    facts: tuple[StoredFact, ...]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What the shelf knows of a pair: `index` if there is a file for it, `note` why one could not be used.

    The index may be used as it is if neither file set was touched; else its block digests of the touched
    side must be found again in the bytes.
    """

    index: DeltaIndex | None = None
    base_touched: bool = False
    expert_touched: bool = False
    note: str = ""

    @property
    def fresh(self) -> bool:
        return self.index is not None and not self.base_touched and not self.expert_touched


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder of index files; made when first written to."""

    folder: Path

    def path(self, pair: Pair) -> Path:
        """The index file of a pair, existing or not."""
        entries = [(e.name, e.base, e.size, e.expert, e.elements, e.block) for e in _table(pair)]
        return self.folder / f"{_key(pair, entries)}.mpindex.safetensors"

    def find(self, pair: Pair) -> Found:
        """Look a pair up; reads the index file only."""
        path = self.path(pair)
        try:
            header, index = _load(path, pair)
        except FileNotFoundError:
            return Found()
        except _Unusable as reason:
            return Found(note=f"{path}: not used, built anew: {reason}")
        return Found(
            index,
            base_touched=header.base.files != _state(pair.base).files,
            expert_touched=header.expert.files != _state(pair.expert).files,
        )

    @contextlib.contextmanager
    def locked(self, pairs: Sequence[Pair]) -> Iterator[None]:
        """Hold the locks of these pairs' files; waits for other runs. Raises `OutputError`."""
        paths = sorted({str(self.path(pair)) + ".lock" for pair in pairs})
        with ExitStack() as stack:
            with self._writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                for path in paths:
                    stack.enter_context(filelock.FileLock(path))
            yield

    def put(self, pair: Pair, index: DeltaIndex) -> DeltaIndex:
        """Write (or write anew) the file of a pair; the caller holds its lock. Returns the index as kept."""
        path = self.path(pair)
        arrays = _arrays(pair, index)
        header = IndexHeader(
            format=_FORMAT,
            version=VERSION,
            base=replace(_state(pair.base), content_digest=index.base_content_digest),
            expert=replace(_state(pair.expert), content_digest=index.content_digest),
            tensors=_table(pair),
            arrays={name: _array_digest(array) for name, array in arrays.items()},
        )
        text = msgspec.json.encode(header)
        self._write(path, save(arrays, {_HEADER: text.decode(), _HEADER_DIGEST: _short_digest(text)}))
        sketches = _Sketches(path, header.arrays[_SKETCH_NAME], _block_slices(pair))
        return replace(index, path=str(path), sketches=sketches)

    def facts(self, pair: Pair) -> Mapping[tuple[str, Need], Fact]:
        """Further facts kept for a pair, by base tensor and need; none if any file changed since."""
        found = self._load_facts(pair)
        return {} if found is None else {(each.tensor, _need(each)): each.fact for each in found.facts}

    def keep_facts(self, pair: Pair, facts: Mapping[tuple[str, Need], Fact]) -> None:
        """Add facts to those kept for a pair. Facts that are not finite are not kept."""
        path = self._facts_path(pair)
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{path}.lock"):
                known = {**self.facts(pair), **facts}
                stored = [_stored(tensor, need, fact) for (tensor, need), fact in known.items()]
                stored = [each for each in stored if all(math.isfinite(value) for value in each.fact.values())]
                stored.sort(key=lambda each: (each.tensor, each.need, sorted(each.parameters.items())))
                body = FactsFile(_FACTS_FORMAT, VERSION, _state(pair.base), _state(pair.expert), tuple(stored))
                self._write(path, msgspec.json.encode(replace(body, digest=digest_of(body))))

    def _facts_path(self, pair: Pair) -> Path:
        entries = [(e.name, e.base, e.size, e.expert, e.elements) for e in _table(pair)]
        return self.folder / f"{_key(pair, entries)}.mpfacts.json"

    def _load_facts(self, pair: Pair) -> FactsFile | None:
        try:
            found = msgspec.json.decode(self._facts_path(pair).read_bytes(), type=FactsFile)
        except (OSError, msgspec.DecodeError):
            return None
        mine = [(s.url, s.header_digest, s.files) for s in (_state(pair.base), _state(pair.expert))]
        same = mine == [(s.url, s.header_digest, s.files) for s in (found.base, found.expert)]
        usable = (found.format, found.version) == (_FACTS_FORMAT, VERSION)
        return found if same and usable and found.digest == digest_of(replace(found, digest="")) else None

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file whole or not at all; the caller holds its lock, so what lies about is of a killed run."""
        with self._writing():
            part = path.with_name(f".{path.name}.part")
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self.folder}: index files cannot be written here: {error.strerror or error}; "
                "make room or the folder writable, or choose another with --index DIR"
            ) from error


def default_shelf() -> Path:
    """`mergepipe/index` in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "mergepipe" / "index"


class _Unusable(Exception):
    """Why an index file cannot be used."""


class _Sketches(Mapping[str, NDArray[np.float32]]):
    """Sketches by base tensor, read from the index file when first asked for."""

    def __init__(self, path: Path, digest: str, slices: Mapping[str, slice]) -> None:
        self._path, self._digest, self._slices = path, digest, slices
        self._rows: NDArray[np.float32] | None = None

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        part = self._slices[name]
        if self._rows is None:
            try:
                self._rows = _read_arrays(self._path, {_SKETCH_NAME: self._digest})[_SKETCH_NAME]
            except (OSError, _Unusable) as error:
                raise StaleIndex(f"{self._path}: changed or removed since it was opened ({error}); run again") from None
        return self._rows[part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)


def _key(pair: Pair, entries: Sequence[tuple[str | int, ...]]) -> str:
    identity = [VERSION, pair.base.url, pair.base.header_digest, pair.expert.url, pair.expert.header_digest, entries]
    return digest_of(identity).removeprefix("sha256:")[:32]


def _table(pair: Pair) -> tuple[TensorEntry, ...]:
    return tuple(
        TensorEntry(t.name, t.base.name, t.base.elements, t.expert.name, t.elements, t.block) for t in pair.tensors
    )


def _state(checkpoint: Checkpoint) -> InputState:
    files = tuple(FileState(file.key, file.version) for file in checkpoint.files)
    return InputState(checkpoint.ref, checkpoint.url, checkpoint.header_digest, files)


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


def _load(path: Path, pair: Pair) -> tuple[IndexHeader, DeltaIndex]:
    """Read an index file but for its sketches. Raises `_Unusable` or `FileNotFoundError`."""
    header = _read_header(path)
    if header.tensors != _table(pair):
        raise _Unusable("it holds other tensors or another block grid")
    mine = [(state.url, state.header_digest) for state in (header.base, header.expert)]
    if mine != [(state.url, state.header_digest) for state in (_state(pair.base), _state(pair.expert))]:
        raise _Unusable("it is of other models")
    slices = _block_slices(pair)
    blocks = sum(tensor.blocks for tensor in pair.tensors)
    shapes: dict[str, tuple[tuple[int, ...], type[Any]]] = {n: ((blocks,), k) for n, k in _BLOCK_ARRAYS.items()}
    shapes |= {f"base.{name}": ((blocks,), kind) for name, kind in _BASE_ARRAYS.items()}
    grid = (len(pair.tensors), len(DENSITIES))
    shapes |= {"trim.threshold": (grid, np.float64), "trim.cut": (grid, np.int64)}
    if header.arrays.keys() != {*shapes, _SKETCH_NAME}:
        raise _Unusable("it does not have the arrays of an index")
    arrays = _read_arrays(path, {name: header.arrays[name] for name in shapes})
    for name, (shape, kind) in shapes.items():
        if arrays[name].shape != shape or arrays[name].dtype != kind:
            raise _Unusable(f"{name} is {arrays[name].dtype} of shape {arrays[name].shape}")
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


def _read_header(path: Path) -> IndexHeader:
    with _usable(), safe_open(str(path), framework="numpy") as file:
        metadata = file.metadata() or {}
    text = metadata.get(_HEADER, "").encode()
    try:
        # The format and version first: another version may have another header.
        about = msgspec.json.decode(text, type=_About)
        if (about.format, about.version) != (_FORMAT, VERSION):
            raise _Unusable(f"it is {about.format} version {about.version}, this program writes version {VERSION}")
        if metadata.get(_HEADER_DIGEST) != _short_digest(text):
            raise _Unusable("its header is damaged")
        return msgspec.json.decode(text, type=IndexHeader)
    except msgspec.DecodeError as error:
        raise _Unusable(f"its header is damaged ({error})") from None


class _About(msgspec.Struct):
    format: str
    version: int


def _read_arrays(path: Path, digests: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names, opening the file once. Raises `_Unusable` for one that has another digest."""
    with _usable(), safe_open(str(path), framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in digests}
    for name, digest in digests.items():
        if _array_digest(arrays[name]) != digest:
            raise _Unusable(f"{name} is damaged")
    return arrays


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    """Turn what goes wrong in reading an index file into `_Unusable`; a missing one stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        raise _Unusable(f"it is damaged or unreadable ({error})") from None


def _array_digest(array: NDArray[Any]) -> str:
    return _short_digest(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


def _short_digest(content: bytes | memoryview) -> str:
    return bytes_digest(content)[:16].hex()


def _stored(tensor: str, need: Need, fact: Fact) -> StoredFact:
    parameters = {each.name: getattr(need, each.name) for each in fields(need)}
    if _KEY in parameters:
        # 128 bits, more than JSON readers hold in an integer.
        parameters[_KEY] = f"{parameters[_KEY]:032x}"
    return StoredFact(tensor, type(need).__name__, parameters, dict(fact))


def _need(stored: StoredFact) -> Need:
    parameters: dict[str, Any] = dict(stored.parameters)
    if _KEY in parameters:
        parameters[_KEY] = int(parameters[_KEY], 16)
    need: Need = _NEEDS[stored.need](**parameters)
    return need
