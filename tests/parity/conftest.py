"""mergekit's side of the suite: one batch of everything the selected tests ask for, shared by all workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from tests.parity.batch import Place, Probe  # noqa: E402 - the path must be set first
from tests.parity.cases import Case  # noqa: E402 - the same
from tests.parity.peer import HOW_TO, Job, Outcome, peer_python, run_batch  # noqa: E402 - the same


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where families and mergekit's outputs are, the same folder for every worker of the run."""
    base = tmp_path_factory.getbasetemp()
    return Place((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "parity")


@pytest.fixture(scope="session")
def theirs(request: pytest.FixtureRequest, place: Place) -> Callable[[str], Outcome]:
    """Outcomes of mergekit by name: "CASE-OUT_DTYPE", or "PROBE-LABEL".

    The first worker to come runs the jobs of all selected tests as one batch; the others wait for it.
    """
    python = peer_python()
    if python is None:
        if os.environ.get("CI"):
            pytest.fail(HOW_TO)
        pytest.skip(HOW_TO)
    place.folder.mkdir(parents=True, exist_ok=True)
    record = place.folder / "outcomes.json"
    with FileLock(place.folder / "lock"):
        jobs = wanted_jobs(request.session.items, place)  # writes the families, too
        if not record.exists():
            outcomes = run_batch(python, list(jobs.values()), place.folder / "batch")
            record.write_text(json.dumps([outcome.error for outcome in outcomes]))
    errors = dict(zip(jobs, json.loads(record.read_text()), strict=True))
    return lambda name: Outcome(jobs[name].out, errors[name])


def wanted_jobs(items: list[pytest.Item], place: Place) -> dict[str, Job]:
    """The jobs of the selected tests, by name: of their parameters `case` (with `out_dtype`) and `probe`."""
    jobs: dict[str, Job] = {}
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        case, probe = parameters.get("case"), parameters.get("probe")
        if isinstance(case, Case):
            out_dtype = str(parameters["out_dtype"])
            jobs[f"{case.name}-{out_dtype}"] = place.job(case, out_dtype)
        if isinstance(probe, Probe):
            jobs |= {f"{probe.name}-{label}": job for label, job in place.probe_jobs(probe).items()}
    return jobs
