"""The benchmark from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.run import main

SMALL = ("--experts", "1", "--runs", "1", "--methods", "task_arithmetic", "--peer-runs", "0")


@pytest.mark.slow
def test_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The real program on the small shape, cold and warm: tables, figures as JSON, a picture, nothing left behind."""
    out = tmp_path / "results.json"
    words = [*SMALL, "--cold", "--warm", "--budgets", "100%,10%,1MiB", "--index", "none,ready", "--workers", "2"]
    assert main([*words, "--folder", str(tmp_path / "work"), "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert [setting["cache"] for setting in written["settings"]] == ["cold", "warm"]
    for setting in written["settings"]:
        rows = {row["case"]: row for row in setting["rows"]}
        assert len(rows) == 2 + 4
        full, tenth = rows["task_arithmetic 100% 2 workers"], rows["task_arithmetic 10% 2 workers"]
        assert tenth["expert_bytes"] <= full["expert_bytes"] / 10
        assert rows["task_arithmetic 1MiB 2 workers"]["expert_bytes"] <= 1 << 20
        assert full["metered"] == full["expert_bytes"] * 2
        assert full["asked_bytes"] >= full["metered"]
        assert all(row["floor"] for row in rows.values() if row["role"] != "copy")
        assert full["peak_rss"] > 1 << 20
    assert "task_arithmetic 10%" in capfd.readouterr().out
    assert not (tmp_path / "work" / "out").exists()
    assert not (tmp_path / "work" / "no-index").exists()
    assert ET.fromstring(out.with_suffix(".svg").read_text()).tag.endswith("svg")


@pytest.mark.slow
def test_beside_mergekit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A peer's environment, here one that copies the base, takes part in as many rounds as asked."""
    programs = tmp_path / "peer" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text("#!/bin/sh\necho 9.9\n")
    (programs / "mergekit-yaml").write_text('#!/bin/sh\ncp -R "$(sed -n "s/^base_model: //p" "$2")" "$3"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    out = tmp_path / "results.json"
    words = ["--peer", str(tmp_path / "peer"), "--peer-runs", "1", "--runs", "2", "--budgets", "100%"]
    words += ["--skip-index-build", "--folder", str(tmp_path / "work"), "--out", str(out)]
    assert main([*SMALL, *words]) == 0
    written = json.loads(out.read_text())
    assert written["machine"]["versions"]["mergekit"] == "9.9"
    cases = [each["case"] for each in written["settings"][0]["measured"]]
    assert cases.count("mergekit task_arithmetic") == 1
    assert cases.count("task_arithmetic 100%") == 2
    merge = written["settings"][0]["rows"][1]
    assert merge["by_peer"][0] == pytest.approx(merge["peer"][0] / written["settings"][0]["measured"][1]["wall"])


def test_a_failing_program_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If the measured program fails the benchmark ends with what it said, and gives no figures."""
    words = [*SMALL, "--budgets", "10%", "--program", "false"]
    assert main([*words, "--folder", str(tmp_path), "--out", str(tmp_path / "results.json")]) == 1
    assert "error: false plan" in capfd.readouterr().err
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "blend"], "no recipe for method 'blend'"),
        (["--shapes", "huge"], "--shapes: 'huge' is none of"),
        (["--index", "maybe"], "--index: 'maybe' is neither none nor ready"),
        (["--experts", "many"], "many"),
    ],
)
def test_words_that_mean_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """What cannot be run is said before anything is."""
    assert main([*SMALL, *words, "--folder", str(tmp_path)]) == 1
    assert said in capfd.readouterr().err
