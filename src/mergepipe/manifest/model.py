"""The record published with a merged checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One output file: name below OUT (a POSIX path), size in bytes, `"sha256:…"`.

    `ValueError` for a name that could lead out of OUT: manifests travel, and their names are opened.
    """

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or not path.parts or ".." in path.parts or str(path) != self.name or "\0" in self.name:
            raise ValueError(f"{self.name!r} is not a plain path below the output")
        if self.size < 0:
            raise ValueError(f"{self.name}: size {self.size} is negative")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What executing one output shard did.

    `read_digests[source]` is over the bytes read from that input for this shard, in plan order.
    `bytes_by_purpose`, `reads_by_purpose` and `expert_bytes_by_source` are the shard's metered reads.
    """

    file: FileRecord
    read_digests: Mapping[str, str] = field(hash=False)
    bytes_by_purpose: Mapping[str, int] = field(hash=False)
    reads_by_purpose: Mapping[str, int] = field(hash=False)
    expert_bytes_by_source: Mapping[str, int] = field(hash=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One input as it was when it was read.

    `header_digest` covers names, dtypes, shapes and offsets; `read_digest` the bytes that execution
    read. `content_digest` covers all values, where an index pass has seen them.
    """

    ref: str
    position: int
    header_digest: str
    read_digest: str
    content_digest: str | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything the output is a function of, and the output: equal for equal merges, no clock in it.

    `plan` is the access plan as plain JSON values; `files` are all published files but the manifest.
    """

    recipe: str
    method: str
    seed: int
    plan_digest: str
    plan: Mapping[str, Any] = field(hash=False)
    inputs: tuple[InputRecord, ...]
    files: tuple[FileRecord, ...]
    numerics: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Run:
    """What this run was: clock, host, versions, where inputs were found (their weak fingerprints).

    `tokenizer` is where the output's tokenizer was found, if it is of none of the inputs.
    """

    started: str
    host: str
    versions: Mapping[str, str] = field(hash=False)
    inputs: tuple[Mapping[str, Any], ...] = field(hash=False)
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """`result` is the object `merge --json` prints; its keys stand at the top of the manifest's JSON."""

    identity: Identity
    run: Run
    result: Mapping[str, Any] = field(hash=False)
