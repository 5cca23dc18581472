"""The benchmark from end to end, and its arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cases import COPY, READ, floor_of
from benchmarks.measure import Measurement
from benchmarks.run import Measured, main, summarise, table


def measured(case: str, run: int, wall: float) -> Measured:
    """A case that took `wall` seconds."""
    merge = {"expert_bytes": {"read": 7}} if case.startswith("ties") else None
    return Measured(case, run, Measurement(wall, 0.5, 0.25, 1000, 20, 30, 40, 50, ""), 0, merge)


def test_ratios_are_taken_within_a_round() -> None:
    """A slow round slows yardstick and merge alike: the ratio of neighbours is what counts."""
    rows = summarise(
        [
            measured(case, run, wall * slow)
            for run, slow in enumerate((1.0, 10.0, 2.0))
            for case, wall in ((COPY, 2.0), (READ, 4.0), ("ties 10%", 8.0), (floor_of("ties 10%"), 1.0))
        ]
    )
    assert [row.case for row in rows] == [COPY, READ, "ties 10%", floor_of("ties 10%")]
    merge = rows[2]
    assert merge.wall == (16.0, 8.0, 80.0)
    assert merge.to_copy == (4.0, 4.0, 4.0)
    assert merge.to_read == (2.0, 2.0, 2.0)
    assert merge.to_floor == (8.0, 8.0, 8.0)
    assert merge.expert_bytes == 7
    assert rows[0].to_floor is None
    assert rows[0].expert_bytes is None


def test_table_has_a_line_for_each_case() -> None:
    """Every row shows median and range of its ratios; columns line up."""
    rows = summarise([measured(case, 0, 2.0) for case in (COPY, READ, "ties 10%")])
    lines = table(rows)
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert "1.00 (1.00–1.00)" in lines[3]


@pytest.mark.slow
@pytest.mark.parametrize("state", ["--cold", "--warm"])
def test_end_to_end(tmp_path: Path, state: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The real program on the small shape: a table, all figures as JSON, a budget kept, and no output left behind."""
    words = [
        "--shape",
        "small",
        "--experts",
        "1",
        "--methods",
        "task_arithmetic",
        "--budgets",
        "100%,10%",
        "--runs",
        "1",
    ]
    out = tmp_path / "results.json"
    assert main([*words, state, "--folder", str(tmp_path / "work"), "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    rows = {row["case"]: row for row in written["rows"]}
    assert list(rows) == [each["case"] for each in written["measured"]]
    full, tenth = rows["task_arithmetic 100%"], rows["task_arithmetic 10%"]
    assert tenth["expert_bytes"] <= full["expert_bytes"] / 10
    assert "task_arithmetic 10%" in capfd.readouterr().out
    assert not (tmp_path / "work" / "out").exists()


def test_a_failing_program_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If the measured program fails the benchmark ends with what it said, and gives no figures."""
    words = ["--experts", "1", "--runs", "1", "--budgets", "10%", "--program", "false"]
    assert main([*words, "--folder", str(tmp_path), "--out", str(tmp_path / "results.json")]) == 1
    assert "error: false index" in capfd.readouterr().err
    assert not (tmp_path / "results.json").exists()
