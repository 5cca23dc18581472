"""The one point at which a merge becomes real."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from mergepipe.errors import MergePipeError, OutputError, PublishConflict
from mergepipe.manifest.encode import MANIFEST_NAME, decode, encode
from mergepipe.manifest.model import FileRecord, Manifest
from mergepipe.publish.disk import Disk, writing
from mergepipe.publish.place import located
from mergepipe.publish.staging import Staging, set_aside


def check_output(out: Path, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Refuse, before any work, an OUT that could not be published later. Nothing is changed.

    `inputs` are the input models' folders: OUT may be none of them, lie in none and hold none. What exists is
    replaced only with `overwrite`, and only an empty directory or one with a manifest that lists all it holds,
    never a link or a file. Raises `PublishConflict`.
    """
    out = located(out)
    for folder in inputs:
        _require_apart(out, folder)
    if os.path.lexists(out):
        _require_replaceable(out)
        if not overwrite:
            raise PublishConflict(f"{out}: exists; choose another OUT, or replace it with --overwrite")
        return
    old = set_aside(out)
    if old is not None and not overwrite:
        raise PublishConflict(
            f"{out}: a run with --overwrite was stopped while it replaced this output; the old one is {old}. "
            f"Run again with --overwrite, or move that folder back to {out}"
        )


def commit(staging: Staging, out: Path, manifest: Manifest, overwrite: bool, disk: Disk) -> tuple[str, ...]:
    """Publish what is staged as OUT; returns remarks for the user. The caller holds OUT's lock.

    Order: the staged files are exactly those of the manifest, with its sizes; each is synced; the manifest is
    written last and synced, then the folders; one rename makes OUT; its parent folder is synced. A failure
    (`OutputError`) before the rename leaves OUT as it was and the staged shards resumable, one after it
    leaves the whole new OUT and says so. `PublishConflict` if OUT has appeared meanwhile.

    With `overwrite`, an OUT that exists is exchanged with the new one in one atomic step and then removed. Where
    kernel or file system cannot exchange two names this is **not atomic**: the old OUT is renamed aside, then
    the new one in. A run killed between the two leaves no OUT; the old one is whole in the staging folder, and
    the next run puts it back.
    """
    out = located(out)
    with writing(staging.path, staging.advice):
        folders = _require_complete(staging, manifest.identity.files)
        for file in manifest.identity.files:
            disk.sync_file(staging.path / file.name)
        disk.write_file(staging.path / MANIFEST_NAME, encode(manifest))
        for folder in folders:
            disk.sync_folder(folder)
        _make_real(staging, out, overwrite, disk)
    with writing(out, f"{out} is published and complete, but would perhaps not survive a power failure: run `sync`"):
        disk.sync_folder(out.parent)
    try:
        disk.remove_tree(staging.folder)
    except OSError as error:
        return (f"{staging.folder}: left behind ({error.strerror or error}); {out} is complete, remove it by hand",)
    return ()


def _make_real(staging: Staging, out: Path, overwrite: bool, disk: Disk) -> None:
    if overwrite and os.path.lexists(out):
        _require_replaceable(out)
        if not disk.exchange(staging.path, out):
            _replace_in_two_steps(staging, out, disk)
        return
    try:
        disk.rename_new(staging.path, out)
    except FileExistsError:
        raise PublishConflict(
            f"{out}: appeared while the merge ran; move it away or give --overwrite, and {staging.advice}"
        ) from None


def _replace_in_two_steps(staging: Staging, out: Path, disk: Disk) -> None:
    disk.rename_new(out, staging.previous)
    try:
        disk.rename_new(staging.path, out)
    except OSError:
        with writing(out, f"the old output is whole in {staging.previous}; the next run puts it back"):
            disk.rename_new(staging.previous, out)
        raise


def _require_complete(staging: Staging, files: Sequence[FileRecord]) -> list[Path]:
    """Check the staged files against the manifest's; returns the folders they are in, innermost first."""
    root = staging.path
    listed = {file.name: file for file in files}
    if MANIFEST_NAME in listed or len(listed) != len(files):
        raise OutputError(f"{root}: the manifest lists a file twice, or itself; this is a defect of mergepipe")
    for name, receipt in staging.finished.items():
        if listed.get(name) != receipt.file:
            raise OutputError(f"{root / name}: staged as {receipt.file}, the manifest has {listed.get(name)}")
    folders, names = [root], []
    for path in _walk(root):
        if path.is_dir() and not path.is_symlink():
            folders.append(path)
        else:
            names.append(path.relative_to(root).as_posix())
    # An earlier attempt to commit may have left its manifest; it is written anew.
    stray = set(names) - listed.keys() - {MANIFEST_NAME}
    if stray:
        raise OutputError(f"{root}: would publish files that the manifest does not list: {', '.join(sorted(stray))}")
    for name, file in listed.items():
        path = root / name
        size = path.stat().st_size if path.is_file() and not path.is_symlink() else None
        if size != file.size:
            found = "no such file" if size is None else f"{size:,} bytes"
            raise OutputError(
                f"{path}: {found}, {file.size:,} bytes were written; something else changed it: run again"
            )
    return sorted(folders, key=lambda folder: len(folder.parts), reverse=True)


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _require_apart(out: Path, folder: Path) -> None:
    """`folder` is an input model's: OUT must be apart from it, whatever links lead to either."""
    place, source = out.resolve(), folder.resolve()
    if place == source or (place.exists() and source.exists() and place.samefile(source)):
        raise PublishConflict(f"{out}: is the input model {folder}; inputs are never written to, choose another OUT")
    if source in place.parents:
        raise PublishConflict(f"{out}: lies inside the input model {folder}; choose an OUT outside of it")
    if place in source.parents:
        raise PublishConflict(f"{out}: holds the input model {folder}; choose another OUT")


def _require_replaceable(out: Path) -> None:
    if out.is_symlink() or not out.is_dir():
        kind = "a link" if out.is_symlink() else "not a directory"
        raise PublishConflict(f"{out}: exists and is {kind}; --overwrite replaces outputs of mergepipe only")
    manifest = out / MANIFEST_NAME
    if manifest.is_file():
        if added := _added(out, manifest):
            shown = ", ".join(added[:3]) + (f" and {len(added) - 3} more" if len(added) > 3 else "")
            raise PublishConflict(
                f"{out}: holds {shown}, which the merge that made it did not write and --overwrite would delete; "
                "move what you want to keep elsewhere, or choose another OUT"
            )
        return
    if not any(out.iterdir()):
        return
    raise PublishConflict(
        f"{out}: a directory with files but without {MANIFEST_NAME}, so not an output of mergepipe; "
        "it is not replaced even with --overwrite: choose another OUT or remove it yourself"
    )


def _added(out: Path, manifest: Path) -> list[str]:
    """Files in an output that its manifest does not list; none where the manifest cannot be read."""
    try:
        listed = {file.name for file in decode(manifest.read_bytes(), manifest).identity.files}
    except (OSError, MergePipeError):
        return []
    found = (path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir() or path.is_symlink())
    return sorted(set(found) - listed - {MANIFEST_NAME})
