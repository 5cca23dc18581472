"""Bytes, calls, buffers and passes of a fixed family are those recorded, and a regression of each is seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counts import JOBS, RECORD, Counts, Job, count_all, differences, main, merge_name
from benchmarks.recipes import TEMPLATES
from mergepipe.execute.memory import SlabPool
from mergepipe.operators import additive
from mergepipe.store.local import LocalStore
from mergepipe.store.meter import MeteredStore

HOW_TO = "if that is meant, record them anew: python -m benchmarks.counts --record"
LINEAR: Sequence[Job] = (("linear", "100%", False),)


def recorded() -> Counts:
    """What benchmarks/counts.json holds."""
    found: Counts = json.loads(RECORD.read_text())
    return found


def changed(folder: Path, jobs: Sequence[Job] = LINEAR, methods: Sequence[str] = ()) -> str:
    """How counts of some jobs differ from those recorded."""
    found = count_all(folder, jobs, methods)
    return "\n".join(differences({name: recorded()[name] for name in found}, found))


def test_counts_are_as_recorded(tmp_path: Path) -> None:
    """Every count of every job is the recorded one: a change is either a regression, or is recorded with its diff."""
    lines = differences(recorded(), count_all(tmp_path))
    assert not lines, "\n".join([*lines, HOW_TO])


def test_all_jobs_are_recorded() -> None:
    """The record has what is counted, and nothing of jobs that are no more."""
    names = {"index", *map(merge_name, JOBS), *(f"tile {method}" for method in TEMPLATES)}
    assert recorded().keys() == names


def test_budgets_and_full_reads_are_in_the_record() -> None:
    """The record itself is sound: expert bytes within budgets, nothing read twice by a full read, no output twice."""
    counts = recorded()
    full = counts["merge linear 100%"]
    payload = full["metered expert bytes"]
    assert counts["merge ties 25%"]["metered expert bytes"] <= payload // 4
    assert counts["merge ties 4MiB"]["metered expert bytes"] <= 4 << 20
    weights = full["metered base bytes"] + payload
    assert weights < full["system read bytes"] <= weights + full["metered header bytes"]
    assert full["system write bytes"] < full["metered base bytes"] + (64 << 10)
    assert "metered index bytes" not in counts["merge ties 100% indexed"]


def test_a_doubled_read_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that reads everything twice behind the meter's back shows in the system's calls and bytes."""
    once = LocalStore.read_into

    def twice(self: LocalStore, key: str, start: int, out: memoryview) -> None:
        once(self, key, start, out)
        once(self, key, start, out)

    monkeypatch.setattr(LocalStore, "read_into", twice)
    said = changed(tmp_path)
    assert "merge linear 100%: system read bytes: 29,382,784 recorded, 58,765,568 now (+100.0%)" in said
    assert "metered" not in said


def test_smaller_reads_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes in twice as many requests change the counts of requests, not those of bytes."""
    whole = MeteredStore.read_into

    def halves(self: MeteredStore, key: str, start: int, out: memoryview) -> None:
        half = len(out) // 2
        whole(self, key, start, out[:half])
        whole(self, key, start + half, out[half:])

    monkeypatch.setattr(MeteredStore, "read_into", halves)
    said = changed(tmp_path)
    assert "metered expert requests" in said
    assert "bytes" not in said


def test_smaller_writes_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights written in more and smaller parts than before show as calls."""
    monkeypatch.setattr("mergepipe.checkpoint.writer._SLOT", 1 << 18)
    said = changed(tmp_path)
    assert "system write calls" in said
    assert "system write bytes" not in said


def test_other_buffering_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that keeps a part of its buffers to itself shows in how many were out at once."""
    take = SlabPool.try_take

    def all_but_one(self: SlabPool, count: int) -> Any:
        extra = take(self, 1)
        taken = take(self, count)
        if extra is not None:
            self.give_back(extra)
        return taken

    monkeypatch.setattr(SlabPool, "try_take", all_but_one)
    assert "buffer bytes at most" in changed(tmp_path)


def test_temporaries_and_passes_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One array more in a method's arithmetic shows as elements written, and as bytes allocated for it."""
    subtract = additive.subtract_from_base

    def with_a_copy(tile: Any, base_factor: float, negated: Any) -> None:
        tile.xp.add(negated, 0.0)
        subtract(tile, base_factor, negated)

    monkeypatch.setattr(additive, "subtract_from_base", with_a_copy)
    said = changed(tmp_path, (), ["task_arithmetic"])
    assert "tile task_arithmetic: bytes allocated: 0 recorded, 262,144 now" in said
    assert "tile task_arithmetic: elements written: 458,752 recorded, 524,288 now" in said
    assert "tile task_arithmetic: temporaries: 0 recorded, 262,144 now" in said


def test_differences_name_what_came_and_went() -> None:
    """A job that is new, or gone, differs in all its counts."""
    assert differences({"a": {"x": 1}}, {"b": {"x": 2}}) == [
        "a: x: 1 recorded, 0 now (-100.0%)",
        "b: x: 0 recorded, 2 now",
    ]
    assert differences({"a": {"x": 1}}, {"a": {"x": 1}}) == []


def test_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """What was recorded is what is compared with; other counts are said, and end with exit code 1."""
    counts: Counts = {"merge": {"reads": 2}}
    monkeypatch.setattr("benchmarks.counts.RECORD", tmp_path / "counts.json")
    monkeypatch.setattr("benchmarks.counts.count_all", lambda folder: counts)
    assert main(["--record"]) == 0
    assert main([]) == 0
    counts["merge"]["reads"] = 3
    assert main([]) == 1
    assert "merge: reads: 2 recorded, 3 now (+50.0%)" in capfd.readouterr().err
