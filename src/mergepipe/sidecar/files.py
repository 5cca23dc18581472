"""The base's other files: what goes with the merged model, and copying it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.weightfiles import is_adapter_file, is_weight_file, is_weight_index
from mergepipe.checkpoint.writer import output_error
from mergepipe.store.contract import ByteStore

_BUFFER: Final = 1 << 20

# Written anew for the merged model, or about another one: at the top of the directory only.
_NOT_OURS: Final = frozenset(["config.json", "readme.md", "mergepipe_manifest.json", "mergekit_config.yml"])
# What trainers leave behind, at any depth.
_TRAINING_FILES: Final = frozenset(
    ["trainer_state.json", "training_args.json", "training_args.yaml", "zero_to_fp32.py", "latest"]
)
_TRAINING_FOLDERS: Final = ("checkpoint-", "global_step")


@dataclass(frozen=True, slots=True)
class SidecarFile:
    """One file to copy: its key under the base's directory, its size in bytes."""

    key: str
    size: int


def sidecar_files(store: ByteStore, base: Checkpoint) -> tuple[SidecarFile, ...]:
    """What `copy_sidecars` will copy, sorted by key: all files of the base but weights, its card and training state.

    config.json is not among them: the output's own is made by `output_config`.
    """
    weights = {file.key for file in base.files}
    keys = store.keys()
    return tuple(SidecarFile(key, store.version(key).size) for key in keys if key not in weights and _goes(key))


def copy_sidecars(store: ByteStore, base: Checkpoint, staging: Path, other: Collection[str] = ()) -> tuple[str, ...]:
    """Copy the base's `sidecar_files` but those in `other` into `staging`, byte for byte, durably; the keys copied.

    Links become files, permissions are the user's default. One MiB is held at a time. Raises `OutputError`, or
    `SourceError` if a file cannot be read or shrinks meanwhile.
    """
    files = [file for file in sidecar_files(store, base) if file.key not in other]
    buffer = memoryview(bytearray(_BUFFER))
    for file in files:
        _copy(store, file, staging / file.key, buffer)
    return tuple(file.key for file in files)


def _goes(key: str) -> bool:
    *folders, name = key.split("/")
    return not (
        is_weight_file(key)
        or is_weight_index(key)
        or is_adapter_file(key)
        or name.startswith((".", "events.out.tfevents"))
        or name in _TRAINING_FILES
        or (not folders and name.lower() in _NOT_OURS)
        or any(folder.startswith(_TRAINING_FOLDERS) for folder in folders)
    )


def _copy(store: ByteStore, file: SidecarFile, target: Path, buffer: memoryview) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            for start in range(0, file.size, _BUFFER):
                part = buffer[: min(_BUFFER, file.size - start)]
                store.read_into(file.key, start, part)
                out.write(part)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise output_error(target, error) from error
