"""Files on the shelf: written whole or not at all, told apart by format and version, checked when they are read.

An array file is a safetensors file whose metadata holds a JSON header, in which each array has a digest of its
bytes. docs/index.md describes what is in which.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import filelock
import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.core.digest import bytes_digest, digest_of
from mergepipe.errors import OutputError
from mergepipe.store.contract import Version

_HEADER: Final = "mergepipe"
_HEADER_DIGEST: Final = "mergepipe.digest"
Header = TypeVar("Header")


class Unusable(Exception):
    """Why a file on the shelf cannot be used; what it holds is made anew."""


# --- what a file was made from


@dataclass(frozen=True, slots=True)
class FileState:
    """A weight file when the file on the shelf was made."""

    key: str
    version: Version


@dataclass(frozen=True, slots=True)
class InputState:
    """A checkpoint then. `content_digest`, where there is one, is over the block digests of what was indexed."""

    ref: str
    url: str
    header_digest: str
    files: tuple[FileState, ...]
    content_digest: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Which model it is: its place and its headers, whatever is in its tensors."""
        return self.url, self.header_digest


def input_state(checkpoint: Checkpoint) -> InputState:
    """The state of a checkpoint as it was opened."""
    files = tuple(FileState(file.key, file.version) for file in checkpoint.files)
    return InputState(checkpoint.ref, checkpoint.url, checkpoint.header_digest, files)


def stem(identity: object) -> str:
    """A file's name, but for what tells its format: 128 bits of the digest of what it is of."""
    return digest_of(identity).removeprefix("sha256:")[:32]


# --- writing


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what goes wrong in writing below `folder` into `OutputError`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{folder}: index files cannot be written here: {error.strerror or error}; "
            "make room or the folder writable, or choose another with --index DIR"
        ) from error


@contextlib.contextmanager
def locked(folder: Path, paths: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of these files in `folder`, which is made; waits for other runs. Raises `OutputError`."""
    with ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for lock in sorted({f"{path}.lock" for path in paths}):
                stack.enter_context(filelock.FileLock(lock))
        yield


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; the caller holds its lock, so what lies about is of a killed run."""
    with writing(path.parent):
        part = path.with_name(f".{path.name}.part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def array_file(header: object, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an array file."""
    text = msgspec.json.encode(header)
    return save(dict(arrays), {_HEADER: text.decode(), _HEADER_DIGEST: _short_digest(text)})


def array_digests(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """The digest of each array's bytes, as headers hold it."""
    return {name: _array_digest(array) for name, array in arrays.items()}


# --- reading


def read_header(path: Path, format_: str, version: int, kind: type[Header]) -> Header:
    """The header of an array file. Raises `Unusable` or `FileNotFoundError`."""
    with _usable(), safe_open(str(path), framework="numpy") as file:
        metadata = file.metadata() or {}
    text = metadata.get(_HEADER, "").encode()
    try:
        # The format and version first: another version may have another header.
        about = msgspec.json.decode(text, type=_About)
        if (about.format, about.version) != (format_, version):
            raise Unusable(f"it is {about.format} version {about.version}, this program writes version {version}")
        if metadata.get(_HEADER_DIGEST) != _short_digest(text):
            raise Unusable("its header is damaged")
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise Unusable(f"its header is damaged ({error})") from None


class _About(msgspec.Struct):
    format: str
    version: int


def read_arrays(path: Path, digests: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Arrays by name, each checked against its digest. Raises `Unusable` or `FileNotFoundError`."""
    with _usable(), safe_open(str(path), framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in digests}
    for name, digest in digests.items():
        if _array_digest(arrays[name]) != digest:
            raise Unusable(f"{name} is damaged")
    return arrays


@contextlib.contextmanager
def _usable() -> Iterator[None]:
    """Turn what goes wrong in reading an array file into `Unusable`; a missing one stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        raise Unusable(f"it is damaged or unreadable ({error})") from None


def _array_digest(array: NDArray[Any]) -> str:
    return _short_digest(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


def _short_digest(content: bytes | memoryview) -> str:
    return bytes_digest(content)[:16].hex()
