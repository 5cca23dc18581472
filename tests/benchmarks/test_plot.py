"""The picture of a benchmark's results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks.plot import main, picture, points

SVG = "{http://www.w3.org/2000/svg}"


def row(role: str, case: str, wall: float, **job: Any) -> dict[str, Any]:
    """A row as `benchmarks/run` writes it, but for what no picture shows."""
    spread = [wall, wall, wall]
    merge = role == "merge"
    return {
        "case": case, "role": role, "wall": spread, "floor": [wall / 2] * 3 if merge else None,
        "peer": [wall * 3] * 3 if merge else None, "job": {"workers": None, "indexed": False, **job} if merge else None,
    }  # fmt: skip


def setting(experts: int, rows: list[dict[str, Any]], shape: str = "small", size: int = 10**9) -> dict[str, Any]:
    """One setting of results."""
    return {"cache": "cold", "shape": shape, "experts": experts, "model_bytes": size, "rows": rows}


def ties(seconds: float, budget: str = "100%", workers: int | None = None) -> dict[str, Any]:
    """A merge of one method."""
    return row("merge", "ties", seconds, method="ties", budget=budget, workers=workers)


def titles(results: dict[str, Any]) -> list[str]:
    """Titles of all charts, in order."""
    return [
        each.text or "" for each in ET.fromstring(picture(results)).iter(f"{SVG}text") if each.get("font-size") == "14"
    ]


def test_a_bar_for_each_figure() -> None:
    """Of a merge: floor, ours, mergekit's and cp's, as long as they took, and written beside."""
    results = {"settings": [setting(4, [row("copy", "cp", 1.0), ties(4.0)])]}
    root = ET.fromstring(picture(results))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert [text for text in texts if text in {"2.00", "4.00", "12.00", "1.00"}] == ["2.00", "4.00", "12.00", "1.00"]
    bars = [float(each.get("width", "")) for each in root.iter(f"{SVG}rect") if each.get("x") == "260"]
    longest = max(bars)
    assert [bar / longest for bar in bars] == pytest.approx([2 / 12, 4 / 12, 1, 1 / 12], rel=1e-2)
    assert titles(results) == ["small, 4 experts, cold cache: seconds"]


def test_lines_over_what_was_varied() -> None:
    """Whatever has several values gets a chart of its own; the rest is the same in all its points."""
    results = {
        "settings": [
            setting(2, [ties(1.0), ties(0.5, "10%"), ties(0.7, workers=1)]),
            setting(4, [ties(2.0)]),
            setting(2, [ties(3.0)], shape="large", size=2 * 10**9),
        ]
    }
    assert titles(results)[3:] == [
        "cold, small, ties, 100%: seconds over experts",
        "cold, 2 experts, ties, 100%: seconds over GB a model",
        "cold, small, 2 experts, ties, 100%: seconds over workers",
        "cold, small, 2 experts, ties: seconds over budget",
    ]


def test_everything_lies_on_the_page() -> None:
    """No mark is drawn beyond the picture's edges."""
    root = ET.fromstring(picture({"settings": [setting(n, [ties(n), ties(n / 2, "10%")]) for n in (1, 2, 16)]}))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    for mark in root.iter():
        for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(mark.get(name, "0")) <= most


def test_values_are_in_order() -> None:
    """Experts by number, budgets by size."""
    results = {"settings": [setting(2, [ties(1, "100%"), ties(2, "5%"), ties(3, "30%")])]}
    texts = [
        each.text for each in ET.fromstring(picture(results)).iter(f"{SVG}text") if each.get("text-anchor") == "middle"
    ]
    assert texts == ["5%", "30%", "100%"]


def test_the_index_is_among_the_bars() -> None:
    """Building the index is a job like merges."""
    index = row("index", "build the index", 2.0)
    assert [point.about["method"] for point in points({"settings": [setting(2, [index, ties(1.0)])]})] == [
        "build the index",
        "ties",
    ]


def test_as_a_program(tmp_path: Path) -> None:
    """Results in a file become a picture in another."""
    source, target = tmp_path / "results.json", tmp_path / "picture.svg"
    source.write_text(json.dumps({"settings": [setting(2, [ties(1.0)])]}))
    assert main([str(source), str(target)]) == 0
    assert ET.fromstring(target.read_text()).tag == f"{SVG}svg"
    assert main([str(source)]) == 2
