"""The results of a benchmark as a picture: bars of each job beside its floor, and lines over what was varied.

    python -m benchmarks.plot RESULTS.json PICTURE.svg

SVG, written with the standard library: two kinds of charts are not worth a plotting library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

_COLOURS: Final = {"floor": "#9aa0a6", "mergepipe": "#1a66c2", "mergekit": "#d9822b", "cp of the base": "#4c9a52"}
_WIDTH, _LABELS, _BAR, _LINE_HEIGHT = 900, 260, 12, 220
# What may be varied, and how it is called below the chart.
_VARIED: Final = {"experts": "experts", "model_bytes": "GB a model", "workers": "workers", "budget": "budget"}


@dataclass(frozen=True, slots=True)
class Point:
    """One job of the results: what distinguishes it, and the median seconds of each series."""

    about: Mapping[str, Any]
    seconds: Mapping[str, float]


def points(results: Mapping[str, Any]) -> list[Point]:
    """All merges and index builds of a benchmark's results."""
    found = []
    for setting in results["settings"]:
        copy = next((row["wall"] for row in setting["rows"] if row["role"] == "copy"), None)
        for row in setting["rows"]:
            if row["role"] not in ("merge", "index"):
                continue
            job = row["job"] or {"method": row["case"], "budget": "", "indexed": False, "workers": None}
            about = {name: setting[name] for name in ("cache", "shape", "experts", "model_bytes")} | job
            medians = {"floor": row["floor"], "mergepipe": row["wall"], "mergekit": row["peer"], "cp of the base": copy}
            seconds = {name: spread[0] for name, spread in medians.items() if spread is not None}
            found.append(Point(about, seconds))
    return found


def picture(results: Mapping[str, Any]) -> str:
    """The SVG text."""
    page = _Page()
    every = points(results)
    for setting in dict.fromkeys((p.about["shape"], p.about["experts"], p.about["cache"]) for p in every):
        mine = [p for p in every if (p.about["shape"], p.about["experts"], p.about["cache"]) == setting]
        shape, experts, cache = setting
        _bars(page, f"{shape}, {experts} experts, {cache} cache: seconds", mine)
    for varied in _VARIED:
        for title, group in _series(every, varied):
            _lines(page, title, varied, group)
    return page.text()


def _series(every: Sequence[Point], varied: str) -> Iterator[tuple[str, list[Point]]]:
    """Points that differ in one thing only, if there are several."""
    # A shape and the bytes of a model are the same thing.
    free = {varied} | ({"shape"} if varied == "model_bytes" else set())
    free |= {"model_bytes"} if varied != "model_bytes" else set()
    groups: dict[str, list[Point]] = {}
    for point in every:
        fixed = {name: value for name, value in point.about.items() if name not in free and value not in ("", None)}
        indexed = fixed.pop("indexed")
        if varied == "budget":
            indexed = False  # an index is there below the whole, none at the whole
        words = [f"{value} experts" if name == "experts" else str(value) for name, value in fixed.items()]
        groups.setdefault(", ".join([*words, *(["indexed"] if indexed else [])]), []).append(point)
    for title, group in groups.items():
        if len({str(point.about[varied]) for point in group}) > 1:
            yield title, group


class _Page:
    """An SVG that grows downwards."""

    def __init__(self) -> None:
        self._root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg")
        self._root.set("font-family", "sans-serif")
        self._root.set("font-size", "11")
        self.height = 10.0

    def rect(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._add("rect", x=x, y=y, width=max(width, 0.5), height=height, fill=colour)

    def line(self, ends: Sequence[tuple[float, float]], colour: str, width: float = 1.0) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
        self._add("polyline", points=joined, fill="none", stroke=colour, stroke_width=width)

    def dot(self, x: float, y: float, colour: str) -> None:
        self._add("circle", cx=x, cy=y, r=3, fill=colour)

    def write(self, x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> None:
        self._add("text", x=x, y=y, text_anchor=anchor, font_size=size).text = text

    def text(self) -> str:
        """The whole picture on a white ground."""
        self._root.set("viewBox", f"0 0 {_WIDTH} {self.height:.0f}")
        ground = ET.Element("rect", width="100%", height="100%", fill="white")
        self._root.insert(0, ground)
        ET.indent(self._root)
        return ET.tostring(self._root, encoding="unicode") + "\n"

    def _add(self, tag: str, **attributes: str | float) -> ET.Element:
        written = {name: f"{each:.1f}" if isinstance(each, float) else str(each) for name, each in attributes.items()}
        hyphened = {name.replace("_", "-"): each for name, each in written.items()}
        return ET.SubElement(self._root, tag, hyphened)


def _title(page: _Page, title: str, names: Sequence[str]) -> None:
    """A chart's title, and its legend below."""
    page.write(10, page.height + 14, title, size=14)
    x = 10.0
    for name in names:
        page.rect(x, page.height + 23, 10, 10, _COLOURS[name])
        page.write(x + 14, page.height + 32, name)
        x += 30 + 7 * len(name)
    page.height += 42


def _present(group: Sequence[Point]) -> list[str]:
    return [name for name in _COLOURS if any(name in point.seconds for point in group)]


def _bars(page: _Page, title: str, group: Sequence[Point]) -> None:
    names = _present(group)
    _title(page, title, names)
    most = max(value for point in group for value in point.seconds.values())
    for point in group:
        about = point.about
        words = [about["method"], about["budget"]] + (["indexed"] if about["indexed"] else [])
        words += [] if about["workers"] is None else [f"{about['workers']} workers"]
        mine = [name for name in names if name in point.seconds]
        page.write(_LABELS - 8, page.height + _BAR * len(mine) / 2 + 4, " ".join(words), "end")
        for name in mine:
            length = (_WIDTH - _LABELS - 70) * point.seconds[name] / most
            page.rect(_LABELS, page.height, length, _BAR - 2, _COLOURS[name])
            page.write(_LABELS + length + 4, page.height + _BAR - 3, f"{point.seconds[name]:.2f}")
            page.height += _BAR
        page.height += 6
    page.height += 16


def _lines(page: _Page, title: str, varied: str, group: Sequence[Point]) -> None:
    names = _present(group)
    _title(page, f"{title}: seconds over {_VARIED[varied]}", names)
    ordered = sorted(group, key=lambda point: _place(point.about[varied]))
    most = max(value for point in group for value in point.seconds.values())
    top, bottom, left, right = page.height + 8, page.height + _LINE_HEIGHT, 60, _WIDTH - 60
    for share in (0.0, 0.5, 1.0):
        y = bottom - (bottom - top) * share
        page.line([(left, y), (right, y)], "#dddddd")
        page.write(left - 6, y + 4, f"{most * share:.1f}", "end")
    step = (right - left) / max(1, len(ordered) - 1)
    for at, point in enumerate(ordered):
        value = point.about[varied]
        shown = f"{value / 1e9:.2f}" if varied == "model_bytes" else str(value)
        page.write(left + at * step, bottom + 16, shown, "middle")
    for name in names:
        ends = [
            (left + at * step, bottom - (bottom - top) * point.seconds[name] / most)
            for at, point in enumerate(ordered)
            if name in point.seconds
        ]
        page.line(ends, _COLOURS[name], 2.0)
        for x, y in ends:
            page.dot(x, y, _COLOURS[name])
    page.height = bottom + 40


def _place(value: Any) -> tuple[bool, float, str]:
    """Numbers by size (of a budget the number before its unit; shares after sizes), then texts."""
    if isinstance(value, str):
        digits = "".join(each for each in value if each.isdigit() or each == ".")
        return (value.strip().endswith("%"), float(digits or 0), value)
    return (False, float(value or 0), "")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) != 2:
        sys.stderr.write("usage: python -m benchmarks.plot RESULTS.json PICTURE.svg\n")
        return 2
    results, target = map(Path, words)
    target.write_text(picture(json.loads(results.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
