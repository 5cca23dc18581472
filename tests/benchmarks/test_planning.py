"""The planning and start-up benchmarks, on tiny families."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import planning, startup
from benchmarks.families import Shape
from benchmarks.planning import Planning, lines, measure_planning
from benchmarks.startup import Start, measure_starts

MICRO = Shape("micro", 2, 32, 4, 2, 8, 48, 300, qk_norm=True)


def test_plans_of_every_method_and_budget(tmp_path: Path) -> None:
    """Each is a process of its own, whose figures are the process's, and budgets give different plans."""
    program = [sys.executable, "-m", "mergepipe"]
    items, found = measure_planning(tmp_path, MICRO, 2, ["task_arithmetic", "ties"], ["30%", "100%"], 1, program)
    assert items == 2 * len(MICRO.tensors())
    assert [(each.method, each.budget) for each in found] == [
        ("task_arithmetic", "30%"), ("task_arithmetic", "100%"), ("ties", "30%"), ("ties", "100%"),
    ]  # fmt: skip
    assert len({each.digest for each in found}) == 4
    for each in found:
        assert each.index_seconds + each.plan_seconds < each.wall
        assert each.peak_rss > 1 << 20
        assert each.plan_bytes > 1000


@pytest.mark.parametrize(("wall", "rss", "met"), [(2.0, 500 << 20, True), (2.1, 1, False), (0.1, 501 << 20, False)])
def test_targets_of_planning(wall: float, rss: int, met: bool) -> None:
    """Two seconds and 500 MiB, both."""
    found = Planning("ties", "1%", wall, 1.0, 0.1, 0.1, rss, 1, "sha256:0")
    assert found.met is met
    assert lines([found])[1].rstrip().endswith("met" if met else "missed")


def test_the_command_line_of_planning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It prints a table and writes the figures; a failing program is an error."""
    monkeypatch.setattr(planning, "LLAMA_8B", MICRO)
    words = ["--experts", "1", "--methods", "ties", "--budgets", "50%", "--runs", "1"]
    assert planning.main([*words, "--out", str(tmp_path / "figures.json")]) == 0
    assert "ties 50%" in capfd.readouterr().out
    assert json.loads((tmp_path / "figures.json").read_text())["rows"][0]["budget"] == "50%"
    assert planning.main([*words, "--program", "false"]) == 1
    assert "error: false plan" in capfd.readouterr().err


def test_starts(tmp_path: Path) -> None:
    """Help and check run, in fresh processes, and import no torch."""
    found = {each.command: each for each in measure_starts(tmp_path, MICRO, 2, 1)}
    assert found.keys() == {"--help", "check"}
    assert all("torch" not in each.imported for each in found.values())
    assert found["--help"].peak_rss < found["check"].peak_rss


def test_targets_of_starting() -> None:
    """Time, and torch whatever the time."""
    for seconds, imported, met in ((0.3, (), True), (0.31, (), False), (0.1, ("torch",), False)):
        assert Start("--help", (seconds, 0.0, 9.0), 0.1, 1, 0.3, imported).met is met


def test_heavy_modules_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program imports is seen: here a module that it always does stands for torch."""
    monkeypatch.setattr(startup, "_HEAVY", ("typer", "torch"))
    assert {each.imported for each in measure_starts(tmp_path, MICRO, 1, 1)} == {("typer",)}


def test_the_command_line_of_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It prints a table and writes the figures."""
    assert startup.main(["--shape", "small", "--experts", "1", "--runs", "1", "--out", str(tmp_path / "f.json")]) == 0
    assert "mergepipe --help" in capfd.readouterr().out
    assert [row["command"] for row in json.loads((tmp_path / "f.json").read_text())["rows"]] == ["--help", "check"]
