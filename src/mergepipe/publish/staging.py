"""The place where an output grows until it is whole, and what a killed run left of it.

`.OUT.mergepipe-KEY/` beside OUT holds `files/`, which becomes OUT by one rename, and `journal.jsonl`, which
stays outside of it: until the commit itself, a run that fails anywhere loses no finished shard. While an
output is replaced on a file system that cannot exchange two names, the old one stands there as `previous/`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mergepipe.core.digest import canonical_json
from mergepipe.errors import FormatError, SourceError
from mergepipe.manifest.encode import receipt_from
from mergepipe.manifest.model import Receipt
from mergepipe.publish.disk import Disk, writing
from mergepipe.publish.place import located, staging_folder, staging_folders
from mergepipe.publish.rehash import found_record, open_for_verifying
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter

_FILES: Final = "files"
_JOURNAL: Final = "journal.jsonl"
_PREVIOUS: Final = "previous"


@dataclass(frozen=True, slots=True)
class Resumed:
    """Shards of an earlier run that are good, and the bytes read back to know it."""

    finished: Mapping[str, Receipt]
    verified_bytes: int


class Staging:
    """An open staging folder: shards and sidecars are written below `path`, each shard then recorded.

    `record` may be called from several threads. After a commit, `path` is gone. `verified_bytes` is what opening
    read back of an earlier run's shards.
    """

    def __init__(self, folder: Path, key: str, inputs_key: str, resumed: Resumed, disk: Disk) -> None:
        self.folder = folder
        self.verified_bytes = resumed.verified_bytes
        self._key, self._inputs_key = key, inputs_key
        self._finished = dict(resumed.finished)
        self._disk = disk
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The folder that becomes OUT."""
        return self.folder / _FILES

    @property
    def previous(self) -> Path:
        """Where the commit puts the old OUT if it cannot exchange the two."""
        return self.folder / _PREVIOUS

    @property
    def finished(self) -> Mapping[str, Receipt]:
        """Receipts of the shards that need not be made again, by file name: found at opening, or recorded since."""
        with self._lock:
            return MappingProxyType(dict(self._finished))

    def record(self, receipt: Receipt) -> None:
        """Note a shard whose file is complete; on return the note is on disk. Raises `OutputError`.

        The shard's own bytes may still be in the page cache: the next run trusts only what it hashes again.
        """
        note = {"key": self._key, "inputs_key": self._inputs_key, "receipt": receipt}
        # The newline in front ends a line that a stopped or failed write has left open.
        line = b"\n" + canonical_json(note) + b"\n"
        with self._lock:
            with writing(self.folder, self.advice):
                self._disk.append(self.folder / _JOURNAL, line)
            self._finished[receipt.file.name] = receipt

    def discard(self) -> None:
        """Remove all of it: nothing can be resumed. Raises `OutputError`."""
        with writing(self.folder, "remove it by hand"):
            self._disk.remove_tree(self.folder)

    @property
    def advice(self) -> str:
        """What to do when writing the output failed: the tail of a message."""
        return f"once that is mended, run again: finished shards are kept in {self.folder}"


def open_staging(out: Path, key: str, inputs_key: str, disk: Disk) -> Staging:
    """The staging folder of OUT for the plan digest `key`, with what a run before this one finished in it.

    The caller holds OUT's lock. Finished is a shard whose recorded size and SHA-256 the file still has (it is
    read back) and that was made from inputs of the same `inputs_key`; every other file in the folder is
    removed, and so are OUT's staging folders of other keys. An old OUT that a stopped replacement had set aside
    is put back first. Raises `OutputError`.
    """
    out = located(out)
    folder = staging_folder(out, key)
    with writing(folder, "OUT's parent folder must be writable"):
        _put_back(out, disk)
        for other in staging_folders(out):
            if other != folder:
                disk.remove_tree(other)
        disk.make_folder(folder)
        disk.make_folder(folder / _FILES)
        if not (folder / _JOURNAL).exists():
            disk.append(folder / _JOURNAL, b"")
        disk.sync_folder(folder)
        disk.sync_folder(out.parent)
        resumed = _verified(folder / _FILES, _journal(folder / _JOURNAL, key, inputs_key))
        _remove_others(folder / _FILES, frozenset(folder / _FILES / name for name in resumed.finished), disk)
    return Staging(folder, key, inputs_key, resumed, disk)


def set_aside(out: Path) -> Path | None:
    """The old OUT that a stopped replacement has moved away and not replaced, if there is one."""
    if os.path.lexists(out):
        return None
    found = [folder / _PREVIOUS for folder in staging_folders(out) if (folder / _PREVIOUS).is_dir()]
    return found[0] if found else None


def _put_back(out: Path, disk: Disk) -> None:
    old = set_aside(out)
    if old is not None:
        disk.rename_new(old, out)
        disk.sync_folder(out.parent)
    for folder in staging_folders(out):
        # Beside an OUT that is there: the replacement was done, only the old one's removal was stopped.
        if (folder / _PREVIOUS).is_dir():
            disk.remove_tree(folder / _PREVIOUS)


def _journal(path: Path, key: str, inputs_key: str) -> dict[str, Receipt]:
    """The last receipt of each file. Lines that a stopped write left torn are no receipts."""
    found: dict[str, Receipt] = {}
    for line in path.read_bytes().split(b"\n"):
        try:
            note = json.loads(line)
            if isinstance(note, dict) and (note.get("key"), note.get("inputs_key")) == (key, inputs_key):
                receipt = receipt_from(note.get("receipt"), path)
                found[receipt.file.name] = receipt
        except (ValueError, FormatError):
            continue
    return found


def _verified(folder: Path, receipts: Mapping[str, Receipt]) -> Resumed:
    meter = Meter()
    store = open_for_verifying(folder, meter)
    try:
        finished: dict[str, Receipt] = {}
        for name, receipt in receipts.items():
            try:
                # The size is free to look at; a shard of another size is not worth reading.
                same = store.version(name).size == receipt.file.size and found_record(store, name) == receipt.file
            except SourceError:
                same = False
            if same:
                finished[name] = receipt
        return Resumed(finished, meter.spent().bytes[Purpose.VERIFY])
    finally:
        store.close()


def _remove_others(folder: Path, kept: frozenset[Path], disk: Disk) -> None:
    """Remove all below `folder` but the files `kept` and the folders that lead to them."""
    with os.scandir(folder) as entries:
        found = sorted(Path(entry.path) for entry in entries)
    for path in found:
        if path.is_symlink() or not path.is_dir():
            if path not in kept:
                disk.remove_file(path)
        elif any(path in file.parents for file in kept):
            _remove_others(path, kept, disk)
        else:
            disk.remove_tree(path)
