"""mergekit, as the tests reach it: a virtual environment of its own, and one process for a whole batch of merges."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
HOW_TO = "mergekit's own environment is not set up: run ./dev peer (about 1.3 GB; MERGEPIPE_PEER chooses the place)"

_HERE = Path(__file__).parent


class PeerBroken(Exception):
    """The peer's process itself ended badly; a merge on which mergekit stops is a result, not this."""


@dataclass(frozen=True, slots=True)
class Job:
    """One merge by mergekit. `kind` is "merge" or "multi"; `lanes` an NPZ of random lanes that replaces its masks."""

    recipe: str
    out: Path
    kind: str = "merge"
    options: Mapping[str, Any] = field(default_factory=dict)
    lanes: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What mergekit made of a job: the model in `out`, or the text of what it raised."""

    out: Path
    error: str | None


def peer_python() -> Path | None:
    """The peer's interpreter, None where `setup_peer` has not made it (or not finished)."""
    folder = PROJECT / os.environ.get("MERGEPIPE_PEER", ".venv-peer")
    return folder / "bin" / "python" if (folder / "peer-stamp").is_file() else None


def run_batch(python: Path, jobs: Sequence[Job], folder: Path, hash_seed: int = 0) -> list[Outcome]:
    """Run all jobs in one process of the peer; `folder` keeps the job list, results and log.

    `hash_seed` is the process's PYTHONHASHSEED, on which the order of Python's sets depends.
    """
    folder.mkdir(parents=True)
    listed, results = folder / "jobs.json", folder / "results.json"
    listed.write_text(
        json.dumps(
            [
                {
                    "kind": job.kind,
                    "recipe": job.recipe,
                    "out": str(job.out),
                    "options": dict(job.options),
                    "lanes": None if job.lanes is None else str(job.lanes),
                }
                for job in jobs
            ]
        )
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "PYTHONDONTWRITEBYTECODE": "",  # most of the start is compiling; a second one should not
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    with (folder / "log").open("wb") as log:
        ended = subprocess.run(
            [str(python), str(_HERE / "run_peer.py"), str(listed), str(results)],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode != 0 or not results.is_file():
        tail = (folder / "log").read_text(errors="replace")[-3000:]
        raise PeerBroken(f"the peer's process ended with {ended.returncode}:\n{tail}")
    found = json.loads(results.read_text())
    return [Outcome(job.out, each["error"]) for job, each in zip(jobs, found, strict=True)]
