from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe.errors import OutputError, StaleIndex
from mergepipe.index import index_file
from mergepipe.index.build import ensure
from mergepipe.index.model import DeltaIndex, Pair
from mergepipe.index.storage import Shelf, default_shelf
from mergepipe.index.survey import survey
from mergepipe.stats.contract import (
    BandL1Need,
    Fact,
    MaskedL1Need,
    Need,
    RankedMaskL1Need,
    RankNeed,
    TrimmedL1Need,
    TrimNeed,
)
from mergepipe.stats.sketch import SKETCH
from mergepipe.store.meter import Meter
from tests.index.pairs import pairs_of, same_index, small_family

RELAXED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
FACTS: dict[tuple[str, Need], Fact] = {
    ("up", TrimNeed(0.123)): {"threshold": 0.1 + 0.2, "cut": 12},
    ("up", MaskedL1Need(2**127 + 1, 0.5)): {"l1": 1.0, "masked_l1": 1e-300},
    ("down", RankNeed(77)): {"threshold": 2.0, "cut": 0},
    ("up", RankedMaskL1Need(2**128 - 1, 0.5, 0.0, 40)): {"l1": 3.0, "masked_l1": 0.1},
    ("up", RankedMaskL1Need(2**128 - 1, 0.5, 0.1, 40)): {"l1": 3.0, "masked_l1": 0.2},
    ("up", TrimmedL1Need(0.123)): {"l1": 3.0, "kept_l1": 1 / 3},
    ("up", BandL1Need(0, 7)): {"l1": 3.0, "kept_l1": 2 / 3},
    ("up", BandL1Need(7, 7)): {"l1": 3.0, "kept_l1": 0.0},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A small base and expert."""
    return pairs_of(small_family(tmp_path_factory.mktemp("models"), experts=1))[0]


@pytest.fixture(scope="module")
def index(pair: Pair) -> DeltaIndex:
    """Their index, held nowhere."""
    return ensure(survey([pair], [], True, None), Meter(), 1 << 30, 1).indices[0]


def test_what_is_put_is_found(tmp_path: Path, pair: Pair, index: DeltaIndex) -> None:
    """Every number comes back bit for bit, from one file that the pair's path names."""
    shelf = Shelf(tmp_path / "new" / "folder")
    with shelf.locked([pair]):
        kept = shelf.put(pair, index)
    found = shelf.find(pair)
    assert found.fresh
    assert found.index is not None
    assert same_index(found.index, index)
    assert same_index(kept, index)
    assert found.index.path == kept.path == str(shelf.path(pair))
    assert [path.name for path in shelf.folder.iterdir() if path.suffix == ".safetensors"] == [shelf.path(pair).name]
    assert not list(shelf.folder.glob("*.part"))


def test_sketches_are_read_when_asked_for(tmp_path: Path, pair: Pair, index: DeltaIndex) -> None:
    """Finding an index does not read them; one that is gone by then is said."""
    shelf = Shelf(tmp_path)
    shelf.put(pair, index)
    first, second = shelf.find(pair).index, shelf.find(pair).index
    assert first is not None
    assert second is not None
    assert list(first.sketches) == [tensor.base.name for tensor in pair.tensors]
    assert first.sketches["up"].shape == (index.blocks["up"].l2.size, SKETCH)
    shelf.path(pair).unlink()
    assert first.sketches["down"].dtype == np.float32
    with pytest.raises(StaleIndex, match="changed or removed"):
        _ = second.sketches["up"]


def test_nothing_on_the_shelf(tmp_path: Path, pair: Pair) -> None:
    """A folder that is empty or not there has no index, and that needs no remark."""
    for folder in (tmp_path, tmp_path / "none"):
        found = Shelf(folder).find(pair)
        assert (found.index, found.note, found.fresh) == (None, "", False)
        assert Shelf(folder).facts(pair) == {}


def test_pairs_have_files_of_their_own(tmp_path: Path) -> None:
    """Another expert with the same header, another grid, other tensors: other files."""
    models = small_family(tmp_path, experts=2)
    shelf = Shelf(tmp_path)
    one, two = pairs_of(models)
    finer = pairs_of(models, 100)[0]
    fewer = Pair(one.base, one.expert, one.source, one.tensors[1:])
    assert one.expert.header_digest == two.expert.header_digest
    assert len({shelf.path(each) for each in (one, two, finer, fewer)}) == 4
    assert shelf.path(one) == shelf.path(pairs_of(models)[0])


@RELAXED
@given(st.data())
def test_a_damaged_file_is_never_used(tmp_path: Path, pair: Pair, index: DeltaIndex, data: st.DataObject) -> None:
    """With any byte changed, or the end cut off, either nothing differs or the file is not used, and why is said."""
    shelf = Shelf(tmp_path)
    shelf.put(pair, index)
    path = shelf.path(pair)
    content = bytearray(path.read_bytes())
    header = int.from_bytes(content[:8], "little")
    place = data.draw(st.one_of(st.integers(0, len(content) - 1), st.integers(0, 8 + header)))
    if data.draw(st.booleans()):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[place:]
    path.write_bytes(content)
    found = shelf.find(pair)
    if found.index is None:
        assert str(path) in found.note
        assert "built anew" in found.note
        return
    try:
        assert same_index(found.index, index)
    except StaleIndex:
        assert place > header  # among the sketches, which are checked when they are read


def test_another_version_is_not_used(
    tmp_path: Path, pair: Pair, index: DeltaIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another version of the format is left alone and said."""
    shelf = Shelf(tmp_path)
    shelf.put(pair, index)
    monkeypatch.setattr(index_file, "VERSION", index_file.VERSION + 1)
    assert "version 1" in shelf.find(pair).note


def test_a_file_of_other_models_is_not_used(tmp_path: Path, index: DeltaIndex, pair: Pair) -> None:
    """Renamed to another pair's name, a file is recognised as not belonging there."""
    shelf = Shelf(tmp_path)
    shelf.put(pair, index)
    other = pairs_of(small_family(tmp_path / "other", experts=1))[0]
    shelf.path(pair).rename(shelf.path(other))
    assert "other models" in shelf.find(other).note
    finer = Pair(pair.base, pair.expert, pair.source, pair.tensors[1:])
    shelf.put(pair, index)
    shelf.path(pair).rename(shelf.path(finer))
    assert "other tensors" in shelf.find(finer).note


def test_touched_files_are_noticed(tmp_path: Path) -> None:
    """A later time of modification marks the side it is on, and only that."""
    models = small_family(tmp_path / "models", experts=1)
    shelf = Shelf(tmp_path)
    ensure(survey(pairs_of(models), [], True, shelf), Meter(), 1 << 30, 1)
    for touched, expected in ((models[1], (False, True)), (models[0], (True, True))):
        os.utime(touched / "model.safetensors", ns=(1, 1))
        found = shelf.find(pairs_of(models)[0])
        assert (found.base_touched, found.expert_touched) == expected
        assert not found.fresh


def test_facts_are_kept(tmp_path: Path, pair: Pair) -> None:
    """Facts come back exactly, with the need they answer; new ones are added to old ones."""
    shelf = Shelf(tmp_path / "new")
    items = list(FACTS.items())
    shelf.keep_facts(pair, dict(items[:1]))
    shelf.keep_facts(pair, dict(items[1:]))
    found = shelf.facts(pair)
    assert found == FACTS
    assert all(type(v) is type(FACTS[key][name]) for key, fact in found.items() for name, v in fact.items())


def test_facts_know_no_grid(tmp_path: Path) -> None:
    """Facts of whole tensors are found from any block size."""
    models = small_family(tmp_path, experts=1)
    Shelf(tmp_path).keep_facts(pairs_of(models, 512)[0], FACTS)
    assert Shelf(tmp_path).facts(pairs_of(models, 64)[0]) == FACTS


def test_stale_or_damaged_facts_are_not_used(tmp_path: Path) -> None:
    """After a change of any file, or of the kept file itself, there are none."""
    models = small_family(tmp_path / "models", experts=1)
    shelf = Shelf(tmp_path / "shelf")
    shelf.keep_facts(pairs_of(models)[0], FACTS)
    path = next(shelf.folder.glob("*.json"))
    content = path.read_bytes()
    for wrong in (content.replace(b'"cut":12', b'"cut":13'), content[:-10], b"", b"[]"):
        path.write_bytes(wrong)
        assert shelf.facts(pairs_of(models)[0]) == {}
    path.write_bytes(content)
    assert shelf.facts(pairs_of(models)[0]) == FACTS
    os.utime(models[1] / "model.safetensors", ns=(1, 1))
    assert shelf.facts(pairs_of(models)[0]) == {}


def test_facts_that_are_not_finite_are_not_kept(tmp_path: Path, pair: Pair) -> None:
    """JSON has no infinity; such a fact is computed anew each time."""
    shelf = Shelf(tmp_path)
    shelf.keep_facts(pair, {("up", TrimNeed(0.5)): {"threshold": float("inf"), "cut": 1}, **FACTS})
    assert shelf.facts(pair) == FACTS


def test_a_shelf_that_cannot_be_written(tmp_path: Path, pair: Pair, index: DeltaIndex) -> None:
    """A typed error names the folder and the option that chooses another."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    shelf = Shelf(blocked)
    with pytest.raises(OutputError, match="--index"), shelf.locked([pair]):
        pass
    with pytest.raises(OutputError, match=str(blocked)):
        shelf.put(pair, index)
    with pytest.raises(OutputError, match="--index"):
        shelf.keep_facts(pair, FACTS)


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's cache: $XDG_CACHE_HOME if it is an absolute path, else ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_shelf() == tmp_path / "cache" / "mergepipe" / "index"
    for other in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", other)
        assert default_shelf() == tmp_path / ".cache" / "mergepipe" / "index"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_shelf() == tmp_path / ".cache" / "mergepipe" / "index"
