from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mergepipe.errors import OutputError, PublishConflict
from mergepipe.manifest.encode import MANIFEST_NAME, encode
from mergepipe.manifest.model import Manifest
from mergepipe.publish.commit import check_output, commit
from mergepipe.publish.disk import Disk, LocalDisk
from mergepipe.publish.staging import Staging, open_staging
from mergepipe.testing.faults import FailingDisk, NoExchangeDisk, RecordingDisk
from mergepipe.testing.manifests import receipt_of, record_of, sample_manifest

FILES = {"model-00001-of-00002.safetensors": b"one", "model-00002-of-00002.safetensors": b"three"}
SIDECARS = {"config.json": b"{}", "sub/notes.txt": b"hello"}
DISK = LocalDisk()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """OUT, not there yet."""
    return tmp_path / "merged"


def staged(out: Path, disk: Disk = DISK) -> tuple[Staging, Manifest]:
    """Everything written and recorded, and its manifest."""
    staging = open_staging(out, "ab" * 32, "inputs", disk)
    for name, data in {**FILES, **SIDECARS}.items():
        (staging.path / name).parent.mkdir(exist_ok=True)
        (staging.path / name).write_bytes(data)
        if name in FILES:
            staging.record(receipt_of(name, data))
    return staging, sample_manifest([record_of(name, data) for name, data in {**FILES, **SIDECARS}.items()])


def tree(folder: Path) -> dict[str, bytes]:
    """All files below, by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole(manifest: Manifest) -> dict[str, bytes]:
    """What a published OUT must hold."""
    return {**FILES, **SIDECARS, MANIFEST_NAME: encode(manifest)}


def old_output(out: Path) -> dict[str, bytes]:
    """An output of an earlier run."""
    out.mkdir()
    (out / MANIFEST_NAME).write_bytes(encode(sample_manifest([record_of("old.safetensors", b"old")])))
    (out / "old.safetensors").write_bytes(b"old")
    return tree(out)


def test_commit_publishes_exactly_what_was_staged(out: Path) -> None:
    """OUT holds shards, sidecars and the manifest, nothing else; the staging folder is gone."""
    staging, manifest = staged(out)
    assert commit(staging, out, manifest, False, DISK) == ()
    assert tree(out) == whole(manifest)
    assert list(out.parent.iterdir()) == [out]


def test_order_of_operations_is_the_guarantee(out: Path) -> None:
    """Every file is synced before the manifest, that before the folders, those before the rename, the parent after."""
    staging, manifest = staged(out)
    disk = RecordingDisk(DISK)
    commit(staging, out, manifest, False, disk)
    steps = [(operation.name, operation.paths[-1]) for operation in disk.log]
    manifest_at = steps.index(("write_file", staging.path / MANIFEST_NAME))
    rename_at = steps.index(("rename_new", out))
    assert {path for name, path in steps[:manifest_at] if name == "sync_file"} == {
        staging.path / name for name in (*FILES, *SIDECARS)
    }
    assert steps[manifest_at + 1 : rename_at] == [("sync_folder", staging.path / "sub"), ("sync_folder", staging.path)]
    assert steps[rename_at + 1 :] == [("sync_folder", out.parent), ("remove_tree", staging.folder)]


@pytest.mark.parametrize("exchange", [True, False])
def test_overwrite_replaces_the_old_output(out: Path, exchange: bool) -> None:
    """With `overwrite` the new output stands there whole, the old one is gone, on any file system."""
    old_output(out)
    disk = LocalDisk() if exchange else NoExchangeDisk(DISK)
    staging, manifest = staged(out, disk)
    assert commit(staging, out, manifest, True, disk) == ()
    assert tree(out) == whole(manifest)
    assert list(out.parent.iterdir()) == [out]


def test_overwrite_without_an_old_output_just_publishes(out: Path) -> None:
    """`overwrite` does not need something to overwrite; an empty directory is replaced as well."""
    staging, manifest = staged(out)
    commit(staging, out, manifest, True, DISK)
    assert tree(out) == whole(manifest)
    empty = out.parent / "empty"
    empty.mkdir()
    staging, manifest = staged(empty)
    commit(staging, empty, manifest, True, DISK)
    assert tree(empty) == whole(manifest)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_out_that_appeared_meanwhile_is_kept(out: Path, overwrite: bool) -> None:
    """A directory of the user's that came while the merge ran stops the commit; the shards stay resumable."""
    staging, manifest = staged(out)
    out.mkdir()
    (out / "thesis.tex").write_bytes(b"mine")
    with pytest.raises(PublishConflict, match="merged"):
        commit(staging, out, manifest, overwrite, DISK)
    assert tree(out) == {"thesis.tex": b"mine"}
    assert open_staging(out, "ab" * 32, "inputs", DISK).finished.keys() == FILES.keys()


def test_failed_second_step_puts_the_old_output_back(out: Path) -> None:
    """Where names cannot be exchanged and the second rename fails, the old OUT stands again as before."""
    twin = out.parent / "twin"
    old_output(twin)
    log = NoExchangeDisk(DISK)
    staging, manifest = staged(twin)
    commit(staging, twin, manifest, True, log)
    renames = [number for number, operation in enumerate(log.log, 1) if operation.name == "rename_new"]
    assert len(renames) == 2

    old = old_output(out)
    staging, manifest = staged(out)
    disk = FailingDisk(NoExchangeDisk(DISK), renames[1], errno.EIO)
    with pytest.raises(OutputError, match="Input/output error"):
        commit(staging, out, manifest, True, disk)
    assert disk.log[-1].paths == (staging.previous, out)
    assert tree(out) == old
    assert open_staging(out, "ab" * 32, "inputs", DISK).finished.keys() == FILES.keys()


def test_an_old_tree_that_cannot_be_removed_is_a_remark(out: Path) -> None:
    """After the commit point the merge has succeeded: what is left over is said with its place, not raised."""
    staging, manifest = staged(out)
    log = RecordingDisk(DISK)
    commit(staging, out, manifest, False, log)
    staging, manifest = staged(out.parent / "second")
    disk = FailingDisk(DISK, len(log.log), errno.EACCES)
    remarks = commit(staging, out.parent / "second", manifest, False, disk)
    assert len(remarks) == 1
    assert str(staging.folder) in remarks[0]
    assert tree(out.parent / "second") == whole(manifest)


@pytest.mark.parametrize("harm", ["missing", "shorter", "stray", "link", "receipt", "twice", "itself"])
def test_what_is_staged_must_be_what_the_manifest_says(out: Path, harm: str) -> None:
    """A file missing, of another size, unlisted, or recorded otherwise stops the commit by name; there is no OUT."""
    staging, manifest = staged(out)
    first = next(iter(FILES))
    files = manifest.identity.files
    culprit = first
    if harm == "missing":
        (staging.path / first).unlink()
    elif harm == "shorter":
        (staging.path / first).write_bytes(b"on")
    elif harm == "stray":
        culprit = "stray.bin"
        (staging.path / culprit).touch()
    elif harm == "link":
        (staging.path / first).rename(out.parent / "away")
        (staging.path / first).symlink_to(out.parent / "away")
    elif harm == "receipt":
        files = (record_of(first, b"One"), *files[1:])
    elif harm == "twice":
        files, culprit = (*files, files[0]), "twice"
    else:
        files, culprit = (*files, record_of(MANIFEST_NAME, b"")), "itself"
    with pytest.raises(OutputError, match=culprit):
        commit(staging, out, sample_manifest(files), False, DISK)
    assert not os.path.lexists(out)


def test_check_passes_where_nothing_is(out: Path, tmp_path: Path) -> None:
    """A free name beside the inputs is fine, also below folders that do not exist yet, and is not created."""
    (tmp_path / "base").mkdir()
    check_output(out, False, [tmp_path / "base"])
    check_output(out / "a" / "b", False, [tmp_path / "base"])
    assert not out.exists()


def test_check_without_overwrite_refuses_what_exists(out: Path) -> None:
    """An existing output, and an empty directory, need --overwrite, and the message says so."""
    old_output(out)
    with pytest.raises(PublishConflict, match="--overwrite"):
        check_output(out, False, [])
    check_output(out, True, [])
    empty = out.parent / "empty"
    empty.mkdir()
    with pytest.raises(PublishConflict, match="--overwrite"):
        check_output(empty, False, [])
    check_output(empty, True, [])


@pytest.mark.parametrize("name", ["notes.txt", "eval/results.json", "more.safetensors"])
def test_what_a_user_put_into_an_output_is_not_overwritten(out: Path, name: str) -> None:
    """Neither before the merge nor, if it came while that ran, at its end; an unreadable manifest protects nothing."""
    old_output(out)
    staging, manifest = staged(out)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes(b"mine")
    before = tree(out)
    with pytest.raises(PublishConflict, match=f"holds {name}, which the merge that made it did not write"):
        check_output(out, True, [])
    with pytest.raises(PublishConflict, match="did not write"):
        commit(staging, out, manifest, True, DISK)
    assert tree(out) == before
    (out / MANIFEST_NAME).write_bytes(b"{}")
    check_output(out, True, [])


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", ["directory", "file", "link", "dangling"])
def test_check_refuses_what_is_not_an_output(out: Path, kind: str, overwrite: bool) -> None:
    """A directory without a manifest, a file and a link are never replaced, and --overwrite is not offered as a way."""
    if kind == "directory":
        out.mkdir()
        (out / "thesis.tex").touch()
    elif kind == "file":
        out.touch()
    else:
        target = out.parent / "target"
        if kind == "link":
            old_output(target)
        out.symlink_to(target)
    with pytest.raises(PublishConflict, match=r"mergepipe"):
        check_output(out, overwrite, [])
    assert os.path.lexists(out)


@pytest.mark.parametrize("place", ["same", "inside", "around", "linked", "linked parent"])
def test_check_keeps_out_apart_from_inputs(tmp_path: Path, place: str) -> None:
    """OUT may not be, lie in or hold an input model, by whatever path, even with --overwrite."""
    models = tmp_path / "models"
    base = models / "base"
    base.mkdir(parents=True)
    (base / MANIFEST_NAME).touch()
    (models / MANIFEST_NAME).touch()
    (tmp_path / "link").symlink_to(base)
    (tmp_path / "alias").symlink_to(models)
    out = {
        "same": base,
        "inside": base / "new" / "merged",
        "around": models,
        "linked": tmp_path / "link",
        "linked parent": tmp_path / "alias" / "base",
    }[place]
    with pytest.raises(PublishConflict, match="input model"):
        check_output(out, True, [tmp_path / "other", base])


def test_check_knows_an_output_that_was_set_aside(out: Path) -> None:
    """After a replacement stopped half-way, only --overwrite goes on, and the message says where the old output is."""
    staging, _ = staged(out)
    staging.previous.mkdir()
    with pytest.raises(PublishConflict, match="previous"):
        check_output(out, False, [])
    check_output(out, True, [])
