"""Facts of several models on the shelf: as they were put, or not at all."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe.errors import OutputError
from mergepipe.index import group_storage
from mergepipe.index.filing import locked
from mergepipe.index.group_storage import Answer, Group, Question, find_group, group_path, put_group
from mergepipe.stats.contract import GramNeed, ImportanceNeed, OverlapNeed, VarianceMaskNeed, VectorGramNeed
from tests.index.pairs import pairs_of, small_family

RELAXED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
NEEDS = st.one_of(
    st.builds(GramNeed),
    st.builds(VectorGramNeed, st.sampled_from([-1, 0])),
    st.builds(VarianceMaskNeed, st.floats(1e-9, 1.0)),
    st.builds(OverlapNeed, st.floats(0.0, 1.0)),
    st.builds(ImportanceNeed, st.integers(1, 1 << 40)),
)
VALUES = st.one_of(st.floats(), st.integers(-(1 << 63), (1 << 63) - 1), st.lists(st.floats(), max_size=9))
NAMES = st.text(max_size=6)
QUESTIONS = st.builds(
    Question, NAMES, st.lists(st.tuples(NAMES, st.integers(0, 1 << 50)), min_size=1, max_size=3).map(tuple), NEEDS
)
ANSWERS = st.builds(Answer.of, st.dictionaries(NAMES, VALUES, max_size=4), st.lists(NAMES, max_size=4).map(tuple))
KNOWN = {
    Question("up", (("up", 960), ("up", 960)), GramNeed()): Answer.of({"gram": [0.1, -0.0, 1e-300]}, ("a", "b", "c")),
    Question("up", (("up", 960), ("up", 400)), VarianceMaskNeed(0.3)): Answer.of(
        {"threshold": 0.5, "cut": 7, "kept": 12, "mean_squares": [1.0, 2.0]}, ("a", "b", "d")
    ),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """A small base and two experts."""
    return group_of(small_family(tmp_path_factory.mktemp("models")))


def group_of(models: list[Path]) -> Group:
    """The models as they are now."""
    pairs = pairs_of(models)
    return Group(pairs[0].base, tuple(pair.expert for pair in pairs))


def exact(answers: Mapping[Question, Answer]) -> list[Any]:
    """Every bit and type of answers, in order."""
    return [
        (question, answer.digests, [(name, _bits(value)) for name, value in answer.fact.items()])
        for question, answer in answers.items()
    ]


def _bits(value: Any) -> Any:
    if isinstance(value, list):
        return [_bits(each) for each in value]
    return struct.pack("<d", value) if isinstance(value, float) else (type(value), value)


@RELAXED
@given(st.dictionaries(QUESTIONS, ANSWERS, max_size=5))
def test_what_is_put_is_found(tmp_path: Path, group: Group, answers: dict[Question, Answer]) -> None:
    """Every number comes back with its type and bits: infinities, NaN, −0, empty lists; no fact at all too."""
    put_group(tmp_path, group, answers)
    found = find_group(tmp_path, group)
    assert found.fresh
    assert found.note == ""
    assert exact(found.answers) == exact(answers)
    assert [path.name for path in tmp_path.iterdir()] == [group_path(tmp_path, group).name]


def test_nothing_on_the_shelf(tmp_path: Path, group: Group) -> None:
    """A folder that is empty or not there needs no remark."""
    for folder in (tmp_path, tmp_path / "none"):
        found = find_group(folder, group)
        assert (found.answers, found.note) == ({}, "")


def test_groups_have_files_of_their_own(tmp_path: Path, group: Group) -> None:
    """Other experts, another order, another base: other files."""
    one, two = group.experts
    groups = [group, Group(group.base, (two, one)), Group(group.base, (one,)), Group(one, (two,)), Group(two, (one,))]
    assert len({group_path(tmp_path, each) for each in groups}) == 5


@RELAXED
@given(st.data())
def test_a_damaged_file_is_never_used(tmp_path: Path, group: Group, data: st.DataObject) -> None:
    """With any byte changed, or the end cut off, either nothing differs or the file is not used, and why is said."""
    put_group(tmp_path, group, KNOWN)
    path = group_path(tmp_path, group)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    path.write_bytes(content)
    found = find_group(tmp_path, group)
    if found.note:
        assert found.answers == {}
        assert str(path) in found.note
        assert "built anew" in found.note
    else:
        assert exact(found.answers) == exact(KNOWN)


def test_another_version_is_not_used(tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another version, or of another format, is left alone and said."""
    put_group(tmp_path, group, KNOWN)
    path = group_path(tmp_path, group)
    content = path.read_bytes()
    monkeypatch.setattr(group_storage, "VERSION", group_storage.VERSION + 1)
    group_path(tmp_path, group).write_bytes(content)
    assert "version 1" in find_group(tmp_path, group).note
    monkeypatch.undo()
    monkeypatch.setattr(group_storage, "_FORMAT", "mergepipe-other")
    assert "mergepipe-group" in find_group(tmp_path, group).note


def test_a_file_of_other_models_is_not_used(tmp_path: Path, group: Group) -> None:
    """Renamed to another group's name, a file is recognised as not belonging there."""
    put_group(tmp_path, group, KNOWN)
    other = Group(group.base, group.experts[::-1])
    group_path(tmp_path, group).rename(group_path(tmp_path, other))
    assert "other models" in find_group(tmp_path, other).note


def test_touched_files_are_noticed(tmp_path: Path) -> None:
    """A later time of modification marks the model it is of, and only that."""
    models = small_family(tmp_path / "models")
    put_group(tmp_path, group_of(models), KNOWN)
    assert find_group(tmp_path, group_of(models)).touched == (False, False, False)
    os.utime(models[2] / "model.safetensors", ns=(1, 1))
    assert find_group(tmp_path, group_of(models)).touched == (False, False, True)
    os.utime(models[0] / "model.safetensors", ns=(1, 1))
    found = find_group(tmp_path, group_of(models))
    assert found.touched == (True, False, True)
    assert not found.fresh


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was(
    tmp_path: Path, group: Group, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """No half-written file takes the place of a whole one."""
    put_group(tmp_path, group, KNOWN)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr({"fsync": os, "replace": Path}[step], step, fail)
    with pytest.raises(OutputError, match="--index"):
        put_group(tmp_path, group, {})
    monkeypatch.undo()
    assert exact(find_group(tmp_path, group).answers) == exact(KNOWN)


def test_a_shelf_that_cannot_be_written(tmp_path: Path, group: Group) -> None:
    """A typed error names the folder and the option that chooses another."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(OutputError, match="--index"), locked(blocked, [group_path(blocked, group)]):
        pass
    with pytest.raises(OutputError, match=str(blocked)):
        put_group(blocked, group, KNOWN)
