"""Runs inside the peer's environment: a batch of merges through mergekit's own Python API, in one process.

    python run_peer.py JOBS.json RESULTS.json

JOBS is a list of objects, RESULTS one of the same length and order:

* job `merge`: {"kind": "merge", "recipe": YAML, "out": DIR, "options": {MergeOptions fields}, "lanes": NPZ or null}
* job `multi`: the same with several documents, through mergekit-multi; intermediate models go to DIR + "-parts"
* result: {"error": null or "Type: message"}

With "lanes", random masks come from the file instead of torch's generator: under the key "POSITION/TENSOR" it
holds one uniform 16-bit integer for each element, and an element is kept where it is below
`round(probability · 65536)`. POSITION counts the inputs other than the base. The rest of the method (rank
probabilities, rescaling, voting) is mergekit's.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
import yaml
from mergekit.config import MergeConfiguration
from mergekit.io.tasks import LoaderCache
from mergekit.merge import MergeOptions, run_merge
from mergekit.merge_methods import generalized_task_arithmetic as task_vectors
from mergekit.merge_methods.task_adapter import ExecuteMergeMethodTask
from mergekit.scripts import multimerge

_DEFAULTS = {"quiet": True, "write_model_card": False}


class FedMasks:
    """Stands in for `torch.bernoulli` while knowing which input of which tensor is being sparsified."""

    def __init__(self, lanes: Any) -> None:
        self._lanes = lanes
        self._tensor = ""
        self._position = -1
        self.used: set[str] = set()

    def enter_tensor(self, name: str) -> None:
        self._tensor, self._position = name, -1

    def enter_input(self) -> None:
        self._position += 1

    def bernoulli(self, probabilities: torch.Tensor) -> torch.Tensor:
        key = f"{self._position}/{self._tensor}"
        self.used.add(key)
        lanes = torch.from_numpy(self._lanes[key].astype(np.int64)).reshape(probabilities.shape)
        kept = lanes < torch.round(probabilities.double() * 65536).long()
        return kept.to(probabilities.dtype)


@contextmanager
def fed(lanes: Path) -> Iterator[None]:
    """While open, mergekit's sparsification draws the masks of `lanes`."""
    with np.load(lanes) as archive:
        masks = FedMasks({key: archive[key] for key in archive.files})
    sparsify, execute = task_vectors.sparsify, ExecuteMergeMethodTask.execute

    def counted_sparsify(*given: Any, **named: Any) -> Any:
        masks.enter_input()
        return sparsify(*given, **named)

    def named_execute(task: Any, *given: Any, **named: Any) -> Any:
        masks.enter_tensor(task.output_weight.name)
        return execute(task, *given, **named)

    with (
        patch.object(torch, "bernoulli", masks.bernoulli),
        patch.object(task_vectors, "sparsify", counted_sparsify),
        patch.object(ExecuteMergeMethodTask, "execute", named_execute),
    ):
        yield
    if not masks.used:
        raise RuntimeError("no mask was drawn: mergekit's sparsification no longer goes through what is replaced here")


def merge(job: dict[str, Any]) -> None:
    """One job; raises whatever mergekit raises."""
    options = MergeOptions(**(_DEFAULTS | job["options"]))
    # Loaders are kept from job to job by model; a batch need not hold all of them open.
    LoaderCache().loaders.clear()
    if job["kind"] == "multi":
        run_multi(job, options)
        return
    config = MergeConfiguration.model_validate(yaml.safe_load(job["recipe"]))
    run_merge(config, job["out"], options)


def run_multi(job: dict[str, Any], options: MergeOptions) -> None:
    """Several documents, by the functions behind the command mergekit-multi."""
    parts = f"{job['out']}-parts"
    Path(parts).mkdir()
    configs, dependencies = multimerge.load_config(job["recipe"], parts)
    tasks = multimerge.make_tasks(configs, dependencies, options, parts, job["out"], False)
    multimerge.Executor(tasks).execute()


def result(job: dict[str, Any]) -> dict[str, Any]:
    """What became of one job. A failed one leaves no output."""
    try:
        if job["lanes"]:
            with fed(Path(job["lanes"])):
                merge(job)
        else:
            merge(job)
    except Exception as error:  # noqa: BLE001 - whatever mergekit stops with is the result
        shutil.rmtree(job["out"], ignore_errors=True)
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def main(jobs: str, results: str) -> None:
    """Run the job list of one file, write the results to the other."""
    logging.disable(logging.ERROR)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    batch = json.loads(Path(jobs).read_text(encoding="utf-8"))
    Path(results).write_text(json.dumps([result(job) for job in batch]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
