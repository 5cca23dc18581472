from __future__ import annotations

import os
from pathlib import Path

import pytest

from mergepipe.index.build import ensure
from mergepipe.index.index_file import IndexHeader, load_index
from mergepipe.index.model import DeltaIndex, Pair, Wanted
from mergepipe.index.storage import Shelf
from mergepipe.index.survey import survey
from mergepipe.stats.contract import MaskedL1Need, TrimNeed
from mergepipe.store.meter import Meter
from tests.index.pairs import pairs_of, same_index, small_family

MEMORY = 256 << 20
GRID, MASK = Wanted(0, "up", TrimNeed(0.5)), Wanted(1, "up", MaskedL1Need(7, 0.5))


def test_what_is_missing_is_foreseen_and_found_by_looking_again(tmp_path: Path) -> None:
    """Without a shelf's files everything is to be read; when they are there a new look finds them, the old does not."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    before = survey(pairs, [GRID, MASK], True, shelf)
    assert before.unindexed == list(pairs)
    assert (list(before.open), dict(before.facts)) == ([MASK], {})  # the index to come will answer the other
    made = ensure(before, Meter(), MEMORY, 2)
    assert made.index_bytes == before.cost(MEMORY, 2) > 0
    assert before.unindexed == list(pairs)
    after = before.again()
    assert (after.unindexed, list(after.open), after.cost(MEMORY, 2)) == ([], [], 0)
    assert after.facts == made.facts
    assert all(same_index(after.indices[after.first[n]], each) for n, each in enumerate(made.indices))


def test_touched_files_cost_their_hashing(tmp_path: Path) -> None:
    """An index whose expert was touched is not used as it is, and cheaper to check than to build."""
    family, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    ensure(survey(pairs_of(family), [], True, shelf), Meter(), MEMORY, 2)
    anew = survey(pairs_of(family), [], True, None).cost(MEMORY, 2)
    expert = pairs_of(family)[0].expert
    os.utime(Path(expert.url, expert.files[0].key), ns=(1, 1))
    found = survey(pairs_of(family), [], True, shelf)
    assert [pair.expert.url for pair in found.unindexed] == [expert.url]
    assert 0 < found.cost(MEMORY, 2) < anew


def test_each_index_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the survey to the knowledge, however often its cost is asked."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    made = ensure(survey(pairs, [GRID], True, shelf), Meter(), MEMORY, 2)
    opened: list[Path] = []

    def load(path: Path, pair: Pair) -> tuple[IndexHeader, DeltaIndex]:
        opened.append(path)
        return load_index(path, pair)

    monkeypatch.setattr("mergepipe.index.storage.load_index", load)
    found = survey(pairs, [GRID], True, shelf)
    assert found.cost(MEMORY, 2) == 0
    found.require_known(MEMORY, 2)
    assert ensure(found, Meter(), MEMORY, 2).facts == made.facts
    assert sorted(opened) == sorted(shelf.path(pair) for pair in pairs)
