from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import OutputError
from mergepipe.manifest.model import Receipt
from mergepipe.publish.disk import LocalDisk
from mergepipe.publish.staging import Staging, open_staging, set_aside
from mergepipe.testing.manifests import receipt_of

KEY = "sha256:" + "ab" * 32
SHARDS = {f"model-0000{number}-of-00003.safetensors": bytes([number]) * 1000 for number in (1, 2, 3)}
DISK = LocalDisk()


def opened(out: Path, key: str = KEY, inputs_key: str = "inputs") -> Staging:
    """The staging folder as a new run finds it."""
    return open_staging(out, key, inputs_key, DISK)


def make(staging: Staging, *names: str) -> dict[str, Receipt]:
    """Write and record these shards."""
    made = {}
    for name in names:
        (staging.path / name).write_bytes(SHARDS[name])
        made[name] = receipt_of(name, SHARDS[name])
        staging.record(made[name])
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """OUT, not there yet."""
    return tmp_path / "merged"


def test_finished_shards_are_found_again(out: Path) -> None:
    """The next run for the same plan and inputs gets the receipts of the shards that are there, and their bytes."""
    one, two, _ = SHARDS
    staging = opened(out)
    assert staging.finished == {}
    assert staging.verified_bytes == 0
    made = make(staging, one, two)
    assert staging.finished == made
    again = opened(out)
    assert again.finished == made
    assert again.verified_bytes == 2000
    assert {path.name: path.read_bytes() for path in again.path.iterdir()} == {name: SHARDS[name] for name in made}
    assert not out.exists()


def test_staging_is_a_hidden_sibling_of_out(out: Path) -> None:
    """What grows is on OUT's own file system, under a name keyed by the plan."""
    staging = opened(out)
    assert staging.folder == out.parent / ".merged.mergepipe-abababababababab"
    assert staging.path.parent == staging.folder


@pytest.mark.parametrize("harm", ["flip", "shorten", "lengthen", "remove", "folder"])
def test_a_harmed_shard_is_made_again(out: Path, harm: str) -> None:
    """A shard whose file is not, byte for byte, what was recorded is not resumed and its remains are removed."""
    one, two, three = SHARDS
    made = make(opened(out), one, two, three)
    path = opened(out).path / two
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[500] ^= 1
        path.write_bytes(data)
    elif harm == "shorten":
        path.write_bytes(data[:-1])
    elif harm == "lengthen":
        path.write_bytes(data + b"\0")
    else:
        path.unlink()
        if harm == "folder":
            path.mkdir()
    again = opened(out)
    assert again.finished == {one: made[one], three: made[three]}
    assert not path.exists()
    assert again.verified_bytes == (3000 if harm == "flip" else 2000)
    remade = make(again, two)
    assert opened(out).finished == made | remade


def test_unfinished_files_are_removed(out: Path) -> None:
    """A shard that was being written, sidecars, folders and links of a stopped run do not reach the output."""
    one, two, _ = SHARDS
    staging = opened(out)
    made = make(staging, one)
    (staging.path / two).write_bytes(b"half")
    (staging.path / "config.json").write_text("{}")
    (staging.path / "sub" / "deep").mkdir(parents=True)
    (staging.path / "sub" / "deep" / "x").touch()
    (out.parent / "elsewhere").mkdir()
    (out.parent / "elsewhere" / "kept").touch()
    (staging.path / "link").symlink_to(out.parent / "elsewhere")
    assert opened(out).finished == made
    assert [path.name for path in staging.path.iterdir()] == [one]
    assert (out.parent / "elsewhere" / "kept").exists()


def test_shards_in_folders_are_kept(out: Path) -> None:
    """A finished file below a folder is resumed; its unfinished neighbours go."""
    staging = opened(out)
    (staging.path / "sub" / "empty").mkdir(parents=True)
    for name in ("kept", "other"):
        (staging.path / "sub" / name).write_bytes(b"abc")
    staging.record(receipt_of("sub/kept", b"abc"))
    assert list(opened(out).finished) == ["sub/kept"]
    assert sorted(path.name for path in (staging.path / "sub").iterdir()) == ["kept"]


def test_changed_inputs_clear_what_was_made_from_the_old(out: Path) -> None:
    """Shards made from inputs of another key are not used; going back to the old inputs trusts only equal bytes."""
    one, two, _ = SHARDS
    made = make(opened(out), one, two)
    changed = opened(out, inputs_key="changed")
    assert changed.finished == {}
    assert list(changed.path.iterdir()) == []
    (changed.path / one).write_bytes(b"other" * 200)
    changed.record(receipt_of(one, b"other" * 200))
    assert list(opened(out, inputs_key="changed").finished) == [one]
    assert opened(out).finished == {}
    assert made


def test_staging_of_other_plans_is_cleared(out: Path) -> None:
    """A new plan for OUT removes the folders of the plans before it, and nothing of other outputs."""
    make(opened(out), *SHARDS)
    neighbour = opened(out.parent / "merged2")
    other = opened(out, key="sha256:" + "cd" * 32)
    assert other.finished == {}
    assert sorted(path.name for path in out.parent.iterdir()) == sorted([other.folder.name, neighbour.folder.name])


def test_keys_with_one_prefix_are_told_apart(out: Path) -> None:
    """Two plans whose digests begin alike share a folder's name, but not their shards."""
    make(opened(out, key="ab" * 32), *SHARDS)
    assert opened(out, key="ab" * 31 + "cd").finished == {}


@given(cut=st.integers(0, 10_000))
def test_a_torn_journal_loses_only_the_torn_line(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Whatever the length a stopped write left, whole lines count, the torn one does not, and later ones do again."""
    out = tmp_path_factory.mktemp("torn") / "merged"
    one, two, three = SHARDS
    staging = opened(out)
    journal = staging.folder / "journal.jsonl"
    made = make(staging, one)
    first = journal.stat().st_size
    made |= make(staging, two)
    second = journal.stat().st_size
    size = cut % (second + 1)
    journal.write_bytes(journal.read_bytes()[:size])
    # A line without its last newline is whole all the same.
    expected = [name for name, end in ((one, first), (two, second)) if size >= end - 1]
    again = opened(out)
    assert list(again.finished) == expected
    made |= make(again, *(name for name in (one, two, three) if name not in again.finished))
    assert opened(out).finished == made


@given(junk=st.lists(st.binary(max_size=40), max_size=5))
def test_junk_in_the_journal_is_no_receipt(tmp_path_factory: pytest.TempPathFactory, junk: list[bytes]) -> None:
    """Lines of any bytes, and JSON that is no receipt, are passed over."""
    out = tmp_path_factory.mktemp("junk") / "merged"
    made = make(opened(out), *SHARDS)
    journal = opened(out).folder / "journal.jsonl"
    lines = [*junk, b"[]", b'{"key": 1}', b'{"key":"%s","inputs_key":"inputs","receipt":{}}' % KEY.encode()]
    with journal.open("ab") as file:
        file.write(b"\n".join(lines))
    assert opened(out).finished == made


def test_threads_may_record(out: Path) -> None:
    """Receipts recorded by several threads at once are all found again."""
    staging = opened(out)
    names = [f"shard-{number}" for number in range(12)]
    for name in names:
        (staging.path / name).write_bytes(name.encode())
    threads = [threading.Thread(target=staging.record, args=(receipt_of(name, name.encode()),)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(opened(out).finished) == sorted(names)


def test_discard_leaves_nothing(out: Path) -> None:
    """A discarded staging folder is gone; discarding it again is an error of the output."""
    staging = opened(out)
    make(staging, *SHARDS)
    staging.discard()
    assert list(out.parent.iterdir()) == []
    with pytest.raises(OutputError):
        staging.discard()


def test_an_old_output_set_aside_is_put_back(out: Path) -> None:
    """After a replacement stopped between its two renames, opening restores the old OUT whole."""
    staging = opened(out)
    made = make(staging, *SHARDS)
    staging.previous.mkdir()
    (staging.previous / "old").write_bytes(b"old")
    assert set_aside(out) == staging.previous
    again = opened(out)
    assert (out / "old").read_bytes() == b"old"
    assert set_aside(out) is None
    assert not staging.previous.exists()
    assert again.finished == made


def test_an_old_output_is_put_back_whatever_the_next_plan(out: Path) -> None:
    """The old OUT in the folder of another plan is restored before that folder is cleared."""
    staging = opened(out)
    staging.previous.mkdir()
    (staging.previous / "old").write_bytes(b"old")
    opened(out, key="cd" * 32)
    assert (out / "old").read_bytes() == b"old"
    assert not staging.folder.exists()


def test_a_replaced_old_output_is_removed(out: Path) -> None:
    """Beside an OUT that is there, what was set aside is only the rest of a removal that was stopped."""
    staging = opened(out)
    out.mkdir()
    (out / "new").touch()
    staging.previous.mkdir()
    (staging.previous / "old").touch()
    opened(out)
    assert [path.name for path in out.iterdir()] == ["new"]
    assert not staging.previous.exists()


def test_a_staging_place_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    """Without a parent to write to, the error names the staging folder."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="mergepipe-abab"):
        opened(tmp_path / "file" / "merged")
