"""The demo from end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe import api
from mergepipe.demo.run import DemoReport, run_demo
from mergepipe.demo.settings import DemoSettings
from mergepipe.demo.text import NAMES
from mergepipe.testing.checkpoints import read_floats


def run(folder: Path, settings: DemoSettings, said: list[str]) -> DemoReport:
    """The demo with the real merge, in blocks small enough for a micro model."""

    def merge(recipe: Path, out: Path, budget: str) -> Mapping[str, Any]:
        options = replace(api.PlanOptions(), budget=budget, block_bytes=1024)
        return api.merge(recipe, out, options, api.IndexOptions(folder / "index"), overwrite=True)

    return run_demo(folder, merge, said.append, settings)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, micro: DemoSettings) -> tuple[Path, DemoReport]:
    """A demo that has run, and its report."""
    folder = tmp_path_factory.mktemp("run") / "demo"
    return folder, run(folder, micro, [])


def test_merges_at_every_budget(demo: tuple[Path, DemoReport]) -> None:
    """Task arithmetic is merged at 10 %, 30 % and in full, and each budget is kept."""
    _, report = demo
    shares = {merge.name: merge.result["expert_bytes"] for merge in report.merges}
    for budget, share in (("10%", 0.1), ("30%", 0.3), ("100%", 1.0)):
        expert = shares[f"task_arithmetic {budget}"]
        assert 0 < expert["read"] <= share * expert["full"]


def test_the_error_is_measured(demo: tuple[Path, DemoReport]) -> None:
    """The error is the distance of the stored weights from the full read's, relative to the full update."""
    folder, report = demo
    weights = {
        path.name: np.concatenate(
            [values.ravel().astype(np.float64) for _, values in sorted(read_floats(path).items())]
        )
        for path in (folder / "family" / "base", *(folder / "merged").glob("[!.]*/"))
    }
    for merge in report.merges:
        full = weights[f"{merge.method}-100"]
        error = np.linalg.norm(weights[f"{merge.method}-{merge.budget.removesuffix('%')}"] - full)
        assert merge.true_error == pytest.approx(error, rel=1e-9)
        assert merge.relative_error == pytest.approx(error / np.linalg.norm(full - weights["base"]), rel=1e-9)
        assert (merge.true_error == 0) == (merge.budget == "100%")


def test_the_error_is_within_its_bound(demo: tuple[Path, DemoReport]) -> None:
    """Every merge here has a certified bound, and what was measured is within it."""
    _, report = demo
    for merge in report.merges:
        assert merge.result["bound"]["kind"] == "certified"
        assert merge.largest_error is not None
        assert merge.true_error <= merge.largest_error


def test_losses_of_every_model(demo: tuple[Path, DemoReport]) -> None:
    """Base, experts and merges are all measured on every domain."""
    _, report = demo
    assert set(report.expert_loss) == set(NAMES)
    for loss in (report.base_loss, *report.expert_loss.values(), *(merge.loss for merge in report.merges)):
        assert set(loss) == set(NAMES)
        assert all(0 < value < 10 for value in loss.values())


def test_report_as_text(demo: tuple[Path, DemoReport]) -> None:
    """The text has bytes, bounds with their mark, true error and losses of every merge, and fits a wide terminal."""
    _, report = demo
    lines = list(report.lines())
    assert all(len(line) <= 120 for line in lines[1:])
    for merge in report.merges:
        loss, cost = (line for line in lines if line.startswith(f"{merge.name} "))
        assert all(f"{value:.3f}" in loss for value in merge.loss.values())
        assert f"{merge.true_error:.4f}" in cost
        assert "(certified)" in cost


def test_an_absent_bound_is_said_with_its_reason(demo: tuple[Path, DemoReport]) -> None:
    """Where there is no bound the table says none, and below it why."""
    _, report = demo
    first = report.merges[0]
    bound = {"kind": "none", "l2": None, "rounding_l2": None, "reason": "nobody has proved one"}
    lines = list(replace(report, merges=(replace(first, result={**first.result, "bound": bound}),)).lines())
    assert lines[-1] == f"{first.name}: no bound: nobody has proved one"
    assert "none" in lines[-2]


def test_report_as_json(demo: tuple[Path, DemoReport]) -> None:
    """The object for programs is JSON and holds each merge's own result object."""
    _, report = demo
    read = json.loads(json.dumps(report.as_object(), allow_nan=False))
    assert [each["result"]["plan_digest"] for each in read["merges"]] == [
        merge.result["plan_digest"] for merge in report.merges
    ]


def test_a_second_run_finds_the_family(demo: tuple[Path, DemoReport], micro: DemoSettings) -> None:
    """Run again in the same folder, the demo trains nothing and reports the same."""
    folder, report = demo
    said: list[str] = []
    again = run(folder, micro, said)
    assert not any(line.startswith("train") for line in said)
    assert [(merge.true_error, merge.loss) for merge in again.merges] == [
        (merge.true_error, merge.loss) for merge in report.merges
    ]


def test_the_merging_process_has_no_torch() -> None:
    """Whoever runs the demo does not import torch: its processes do."""
    code = "import sys, mergepipe.demo.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
