"""Lines for people: budget, planned, read and bound side by side; never a number without its mark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.manifest.model import FileRecord, Identity, InputRecord, Manifest, Run
from mergepipe.plan.bounds import EXACT, Bound, no_bound
from mergepipe.plan.compose import Composition, compose_models
from mergepipe.plan.family import FamilyRules, align
from mergepipe.report.model import Seconds, merge_result, plan_result, reads_of
from mergepipe.report.text import bound_line, check_lines, check_object, manifest_lines, result_lines, sweep_lines
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import write_checkpoint, write_family
from mergepipe.testing.plans import Corridor, corridor


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Corridor:
    """Two experts."""
    family = write_family(tmp_path_factory.mktemp("family"), experts=2)
    return corridor(family.base, family.experts, block_bytes=64)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (no_bound("because"), "none: because"),
        (EXACT, "certified: equal to the full-read merge, bit for bit"),
        (Bound("certified", 1.5, 0.25, None, None),
         "certified: ‖θ − θ_full‖₂ ≤ 1.5 (rounding adds at most 0.25)"),
        (Bound("certified", 0.0, 0.25, None, None),
         "certified: ‖θ − θ_full‖₂ ≤ 0 (rounding adds at most 0.25)"),
        (Bound("estimated", 1.5, 0.25, 0.5, 0.01),
         "estimated: ‖θ − θ_full‖₂ ≤ 1.5 (rounding adds at most 0.25), 1 % of ‖θ₀‖, 50 % of the full update"),
    ],
)  # fmt: skip
def test_a_bound_has_its_mark(bound: Bound, expected: str) -> None:
    """Kind first; no figure where there is none."""
    assert bound_line(asdict(bound)) == expected


def test_a_plans_lines_have_every_figure(way: Corridor) -> None:
    """What a full read costs, what is allowed and what is planned, each with its share."""
    plan = way.choose("30%")
    lines = dict(
        line.split(maxsplit=1) for line in result_lines(plan_result(plan, plan.planned_bytes, 9, Seconds(plan=0.5)))
    )
    full = plan.full_bytes
    assert f"({full:,} bytes)" in lines["full"]
    assert f"{100 * (plan.budget.cap or 0) / full:.2f} % of full" in lines["budget"]
    assert f"{100 * plan.planned_bytes / full:.2f} % of full" in lines["planned"]
    assert lines["method"] == "task_arithmetic@mergekit, seed 0, policy norm"
    assert lines["bound"].startswith("certified: ")
    assert lines["time"] == "plan 0.50 s"
    assert lines["plan"] == plan.digest
    assert "index 9 bytes" in lines["base"]
    assert "read" not in lines
    assert "merged" not in lines


def test_a_merges_lines_have_what_was_read_from_whom(way: Corridor, tmp_path: Path) -> None:
    """One line a source, below the total."""
    plan = way.choose("60%")
    reads = reads_of(way.run(plan, tmp_path))
    result = merge_result(plan_result(plan, 1, 0, Seconds()), "/the/out", "m", reads, 1)
    lines = list(result_lines(result))
    assert lines[0] == "merged     /the/out"
    at = next(n for n, line in enumerate(lines) if line.startswith("read "))
    assert f"in {result['reads']:,} requests" in lines[at]
    for line, (source, count) in zip(lines[at + 1 :], sorted(reads.by_source.items()), strict=False):
        assert line.endswith(f"from {source}")
        assert f"{count:,} bytes" in line


def test_a_merge_without_experts_divides_by_nothing(tmp_path: Path) -> None:
    """Its shares are left out."""
    family = write_family(tmp_path, experts=1)
    way = corridor(family.base, [])
    lines = list(result_lines(plan_result(way.choose(), 0, 0, Seconds())))
    assert "full read  0 bytes of expert weights" in lines
    assert "planned    0 bytes" in lines


def test_what_check_says(tmp_path: Path) -> None:
    """Models, counts, findings, verdict; the object for programs says the same."""
    tensors: dict[str, Any] = {"w": ("F32", np.ones((2, 2))), "n": ("I64", np.arange(2))}
    paths = [write_checkpoint(tmp_path / "base", tensors), write_checkpoint(tmp_path / "a", {"w": tensors["w"]})]
    meter = Meter()
    base, expert = (open_checkpoint(str(path), meter) for path in paths)

    def composed(*models: Checkpoint) -> Composition:
        family = align(models[0], models[1:], FamilyRules())
        return compose_models(family, {}, None, [{} for _ in models[1:]])

    composition = composed(base, expert)
    lines = list(check_lines(composition))
    assert lines[0] == f"base       {base.ref}: 2 tensors, 32 bytes"
    assert lines[1] == f"expert     {expert.ref}: 1 tensors, 16 bytes"
    assert lines[2] == "aligned    1 tensors to merge, 1 taken from one model"
    assert lines[3:-1] == [str(finding) for finding in composition.findings]
    assert lines[-1] == "ready to merge"
    plain = check_object(composition)
    assert (plain["ok"], plain["base"], plain["experts"]) == (True, base.ref, [expert.ref])
    assert (plain["tensors"], plain["merged"]) == (2, 1)
    assert [each["message"] for each in plain["findings"]] == [each.message for each in composition.findings]
    stranger = open_checkpoint(str(write_family(tmp_path / "other").base), meter)
    broken = composed(expert, base, stranger)
    assert list(check_lines(broken))[-1] == "not mergeable as it is"
    assert check_object(broken)["ok"] is False
    assert {each["severity"] for each in check_object(broken)["findings"]} >= {"error"}


def test_a_manifests_lines_name_inputs_and_files() -> None:
    """Base and experts by their place, files with size and hash."""
    inputs = (InputRecord("base/model", -1, "h", "blake3:0"), InputRecord("some/expert", 0, "h", "blake3:1"))
    files = (FileRecord("model.safetensors", 12345, "sha256:2"),)
    manifest = Manifest(
        Identity("recipe", "linear", 0, "sha256:3", {}, inputs, files, {}), Run("now", "host", {}, ()), {}
    )
    lines = list(manifest_lines(manifest))
    assert [line.split() for line in lines] == [
        ["base", "base/model", "read", "blake3:0"],
        ["expert", "0", "some/expert", "read", "blake3:1"],
        ["file", "model.safetensors", "12,345", "bytes", "sha256:2"],
    ]


def test_a_sweep_has_a_line_a_budget(way: Corridor) -> None:
    """Budget, bytes, share and bound; the measured error where there is one."""
    plans = [way.choose(budget) for budget in ("10%", "50%")]
    results = [plan_result(plan, plan.planned_bytes, 0, Seconds()) for plan in plans]
    results[1]["true_error"] = 0.125
    head, first, second = sweep_lines(results)
    assert "budget" in head
    assert first.split()[0] == "10%"
    assert f"{100 * plans[0].planned_bytes / plans[0].full_bytes:.2f}%" in first
    assert "measured" not in first
    assert second.endswith("; measured 0.125")
    assert "certified" in second
