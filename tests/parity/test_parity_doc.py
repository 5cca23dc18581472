"""docs/parity.md says what is compared and where we differ, no more and no less."""

from __future__ import annotations

import re

from tests.parity import test_deviations
from tests.parity.cases import METHODS
from tests.parity.compare import FLOAT32_ULPS
from tests.parity.peer import PROJECT

TEXT = (PROJECT / "docs" / "parity.md").read_text(encoding="utf-8")


def test_the_table_lists_every_method_with_its_recipes() -> None:
    """A method or recipe that is added must be measured and written down."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+ %|–) \|$", TEXT, re.MULTILINE)
    listed = {method: int(recipes) for method, recipes, *_ in rows}
    assert listed == {method: len(cases) for method, cases in METHODS.items()}
    assert all(int(ulps) <= FLOAT32_ULPS for _, _, ulps, *_ in rows)


def test_every_deviation_that_is_tested_is_listed() -> None:
    """And every test that the page names exists."""
    named = re.findall(r"`(test_\w+)`", TEXT)
    tested = [name for name in vars(test_deviations) if name.startswith("test_")]
    assert sorted(named) == sorted(tested)


def test_all_known_faults_are_answered() -> None:
    """R1 to R19 each have a row."""
    assert re.findall(r"^\| (R\d+) \|", TEXT, re.MULTILINE) == [f"R{number}" for number in range(1, 20)]
