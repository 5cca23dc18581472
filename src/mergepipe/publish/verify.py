"""A published output held against its own manifest."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from mergepipe.core.digest import digest_of
from mergepipe.errors import ManifestMismatch, SourceError
from mergepipe.manifest.encode import MANIFEST_NAME, decode
from mergepipe.manifest.model import FileRecord, Manifest
from mergepipe.publish.rehash import found_record, open_for_verifying, read_whole
from mergepipe.store.contract import ByteStore
from mergepipe.store.meter import Meter

# What loaders pick up by its name alone, so that adding it changes the model that users get.
_LOADED: Final = (
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.gguf", "*.onnx", "*.index.json",
    "*config*.json", "*token*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "*chat_template*", "*.jinja", "*.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`checked` are the names of the files that were hashed; `problems` and `notes` are sentences.

    Problems are what could change the model a loader sees: files missing, changed or added. Other files beside
    them (a user's notes, evaluation results) are notes.
    """

    checked: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(out: Path, meter: Meter) -> VerifyReport:
    """Re-hash every file that OUT's manifest lists, in bounded memory; reads are charged as VERIFY.

    Raises `SourceError` if OUT is no directory, `ManifestMismatch` if it has no manifest, `FormatError` if
    that cannot be read.
    """
    store = open_for_verifying(out, meter)
    try:
        names = store.keys()
        if MANIFEST_NAME not in names:
            raise ManifestMismatch(
                f"{out}: has no {MANIFEST_NAME}, so there is nothing to verify it against; "
                "it is no output of mergepipe, or was copied without it"
            )
        manifest = decode(read_whole(store, MANIFEST_NAME), out / MANIFEST_NAME)
        listed = manifest.identity.files
        damage = [problem for file in listed if (problem := _compare(store, file))]
    finally:
        store.close()
    extra = sorted(set(names) - {file.name for file in listed} - {MANIFEST_NAME})
    loaded = [name for name in extra if _is_loaded(name)]
    added = [f"{name}: not in the manifest, and loaders may read it; remove it" for name in loaded]
    return VerifyReport(
        checked=tuple(file.name for file in listed),
        problems=(*_plan_problems(manifest), *damage, *added),
        notes=tuple(f"{name}: not in the manifest" for name in extra if name not in loaded),
    )


def _compare(store: ByteStore, expected: FileRecord) -> str | None:
    try:
        found = found_record(store, expected.name)
    except SourceError as error:
        return f"{expected.name}: missing or unreadable ({error})"
    if found == expected:
        return None
    sizes = f" and {found.size:,} bytes" if found.size != expected.size else ""
    wanted = f" and {expected.size:,} bytes" if sizes else ""
    return f"{expected.name}: changed: found {found.sha256}{sizes}, the manifest has {expected.sha256}{wanted}"


def _plan_problems(manifest: Manifest) -> list[str]:
    found, expected = digest_of(manifest.identity.plan), manifest.identity.plan_digest
    if found == expected:
        return []
    return [
        f"{MANIFEST_NAME}: the plan's digest is {found}, the manifest has {expected}: the plan was edited or damaged"
    ]


def _is_loaded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(PurePosixPath(name).name.lower(), pattern) for pattern in _LOADED)
