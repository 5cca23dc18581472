"""Law: whichever disk operation a publish dies at or fails in, OUT is absent or whole, and a rerun finishes it."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import OutputError
from mergepipe.manifest.encode import MANIFEST_NAME, encode
from mergepipe.manifest.model import Manifest
from mergepipe.publish.commit import check_output, commit
from mergepipe.publish.disk import Disk, LocalDisk
from mergepipe.publish.lock import output_lock
from mergepipe.publish.place import lock_file, staging_folders
from mergepipe.publish.space import require_space
from mergepipe.publish.staging import open_staging
from mergepipe.testing.faults import Crash, CrashingDisk, FailingDisk, NoExchangeDisk, RecordingDisk, TearingDisk
from mergepipe.testing.manifests import receipt_of, record_of, sample_manifest

SHARDS = {f"model-0000{number}-of-00003.safetensors": bytes([number]) * 64 for number in (1, 2, 3)}
SIDECARS = {"config.json": b'{"model_type": "llama"}', "sub/tokenizer.json": b"{}"}
KEY = "sha256:" + "5a" * 32
STALE_KEY = "sha256:" + "77" * 32

Wrap = Callable[[Disk, int], RecordingDisk]
Tree = dict[str, bytes]


def manifest() -> Manifest:
    """The same in every run."""
    return sample_manifest([record_of(name, data) for name, data in {**SHARDS, **SIDECARS}.items()])


NEW: Tree = {**SHARDS, **SIDECARS, MANIFEST_NAME: encode(manifest())}
# The first shard has the old name and length, so that only its hash tells it from the new one.
_OLD_FILES: Tree = {next(iter(SHARDS)): b"o" * 64, "old.json": b"old"}
_OLD_RECORDS = [record_of(name, data) for name, data in _OLD_FILES.items()]
OLD: Tree = {**_OLD_FILES, MANIFEST_NAME: encode(sample_manifest(_OLD_RECORDS))}


def publish(out: Path, overwrite: bool, disk: Disk) -> list[str]:
    """One run, as the api walks it; returns the shards that had to be made."""
    made = []
    with output_lock(out):
        check_output(out, overwrite, [])
        staging = open_staging(out, KEY, "inputs", disk)
        require_space(out.parent, 1000, 0)
        for name, data in SHARDS.items():
            if name not in staging.finished:
                made.append(name)
                (staging.path / name).write_bytes(data)
                staging.record(receipt_of(name, data))
        for name, data in SIDECARS.items():
            (staging.path / name).parent.mkdir(exist_ok=True)
            (staging.path / name).write_bytes(data)
        commit(staging, out, manifest(), overwrite, disk)
    return made


def prepare(folder: Path, overwrite: bool) -> Path:
    """A place with the leavings of another plan's run and, to overwrite, an old output."""
    out = folder / "merged"
    folder.mkdir(exist_ok=True)
    stale = open_staging(out, STALE_KEY, "inputs", LocalDisk())
    (stale.path / "half").write_bytes(b"half")
    if overwrite:
        out.mkdir()
        for name, data in OLD.items():
            (out / name).write_bytes(data)
    return out


def tree(folder: Path) -> Tree | None:
    """All files below, or None if there is nothing."""
    if not folder.exists():
        return None
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def require_whole(out: Path, before: Tree | None, exchange: bool) -> Tree | None:
    """OUT is as it was or new; or, where names cannot be exchanged, absent with what it was kept whole beside it.

    Returns what counts as OUT from here on.
    """
    found = tree(out)
    if found is None and before is not None:
        assert not exchange
        assert before in [tree(folder / "previous") for folder in staging_folders(out)]
        return before
    assert found in (before, NEW)
    return found


def finish(out: Path, overwrite: bool) -> list[str]:
    """Run again until done; a run is needed unless OUT is published and may not be overwritten."""
    made = [] if tree(out) == NEW and not overwrite else publish(out, overwrite, LocalDisk())
    assert tree(out) == NEW
    if made or overwrite:
        assert sorted(path.name for path in out.parent.iterdir()) == sorted([lock_file(out).name, out.name])
    return made


def count_operations(folder: Path, overwrite: bool, exchange: bool) -> int:
    """Disk operations of one undisturbed run."""
    disk = RecordingDisk(LocalDisk() if exchange else NoExchangeDisk(LocalDisk()))
    publish(prepare(folder, overwrite), overwrite, disk)
    return len(disk.log)


SITUATIONS = pytest.mark.parametrize(
    ("overwrite", "exchange"), [(False, True), (True, True), (True, False)], ids=["new", "exchange", "two renames"]
)


@SITUATIONS
@pytest.mark.parametrize("death", [CrashingDisk, TearingDisk], ids=["between", "within"])
def test_a_crash_at_any_operation_leaves_nothing_or_all(
    tmp_path: Path, death: Wrap, overwrite: bool, exchange: bool
) -> None:
    """After a death at any operation OUT is absent or whole (old or new), and a rerun makes it and clears up."""
    total = count_operations(tmp_path / "count", overwrite, exchange)
    assert total > 12
    for number in range(1, total + 1):
        out = prepare(tmp_path / f"crash{number}", overwrite)
        inner = LocalDisk() if exchange else NoExchangeDisk(LocalDisk())
        with pytest.raises(Crash):
            publish(out, overwrite, death(inner, number))
        require_whole(out, OLD if overwrite else None, exchange)
        finish(out, overwrite)
        shutil.rmtree(out.parent)


@SITUATIONS
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_any_operation_is_an_output_error(
    tmp_path: Path, code: int, overwrite: bool, exchange: bool
) -> None:
    """A full or failing disk is a typed error; until the commit point OUT is as it was, and a rerun finishes."""
    total = count_operations(tmp_path / "count", overwrite, exchange)
    for number in range(1, total + 1):
        out = prepare(tmp_path / f"fail{number}", overwrite)
        disk = FailingDisk(LocalDisk() if exchange else NoExchangeDisk(LocalDisk()), number, code)
        if number == total:
            # Only the removal of what is left over fails: the merge itself has succeeded.
            publish(out, overwrite, disk)
            assert tree(out) == NEW
        else:
            with pytest.raises(OutputError) as raised:
                publish(out, overwrite, disk)
            assert ("is published and complete" in str(raised.value)) == (number == total - 1)
            assert tree(out) == (NEW if number == total - 1 else OLD if overwrite else None)
        finish(out, overwrite)
        shutil.rmtree(out.parent)


@SITUATIONS
def test_recorded_shards_are_not_made_again(tmp_path: Path, overwrite: bool, exchange: bool) -> None:
    """Whatever operation the run died at, shards whose receipts were on disk are resumed, up to the commit itself."""
    resumed = set()
    for number in range(1, count_operations(tmp_path / "count", overwrite, exchange) + 1):
        out = prepare(tmp_path / f"resume{number}", overwrite)
        disk = CrashingDisk(LocalDisk() if exchange else NoExchangeDisk(LocalDisk()), number)
        with pytest.raises(Crash):
            publish(out, overwrite, disk)
        recorded = [o.name for o in disk.log].count("append") - 1
        if tree(out) != NEW and recorded >= 0:
            made = publish(out, overwrite, LocalDisk())
            assert len(made) == len(SHARDS) - recorded
            resumed.add(recorded)
        shutil.rmtree(out.parent)
    assert resumed == {0, 1, 2, 3}


@given(
    overwrite=st.booleans(),
    exchange=st.booleans(),
    deaths=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), min_size=1, max_size=5),
)
def test_any_number_of_crashes_in_a_row_ends_well(
    tmp_path_factory: pytest.TempPathFactory, overwrite: bool, exchange: bool, deaths: list[tuple[bool, int]]
) -> None:
    """Runs that die one after another, also while clearing up, never lose an output nor block the last."""
    out = prepare(tmp_path_factory.mktemp("deaths"), overwrite)
    before = tree(out)
    for torn, number in deaths:
        if tree(out) == NEW and not overwrite:
            break
        inner = LocalDisk() if exchange else NoExchangeDisk(LocalDisk())
        try:
            publish(out, overwrite, TearingDisk(inner, number) if torn else CrashingDisk(inner, number))
        except Crash:
            before = require_whole(out, before, exchange)
        else:
            before = NEW
    finish(out, overwrite)
    shutil.rmtree(out.parent)
