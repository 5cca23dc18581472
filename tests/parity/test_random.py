"""Random methods where each program draws its own masks: the same shares, norms and means as mergekit's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe import api
from mergepipe.testing.checkpoints import read_floats
from tests.parity.batch import Place, Probe
from tests.parity.cases import Recipe, sparse
from tests.parity.compare import Floats
from tests.parity.peer import Outcome

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

SEEDS = range(6)
DENSITY = 0.3
# In standard deviations: the seeds are fixed, so a false alarm is one for good; 4.5 are seen once in 150,000.
MOST = 4.5


def recipe(method: str, rescale: bool) -> Recipe:
    """One expert of weight 1, so that the update is the sparsified task vector."""
    return {
        "merge_method": method, "base_model": "@base", "models": sparse((1.0, DENSITY)),
        "parameters": {"rescale": rescale}, "dtype": "float32", "out_dtype": "float32",
    }  # fmt: skip


def moments(method: str, rescale: bool) -> Probe:
    """Runs of mergekit with its own generator, one for each seed."""
    label = "rescaled" if rescale else "dropped"
    return Probe(
        f"{method}-{label}",
        "f32",
        {str(seed): recipe(method, rescale) for seed in SEEDS},
        {str(seed): {"random_seed": seed} for seed in SEEDS},
    )


METHODS = ("dare_linear", "dare_ties", "della_linear", "della")


def both(probe: Probe, theirs: Callable[[str], Outcome], place: Place, folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """The updates of each program, one mapping by tensor for each seed."""
    base = read_floats(place.family(probe.family) / "base")
    outs: dict[str, list[Path]] = {"mergekit": [], "ours": []}
    for seed in SEEDS:
        outcome = theirs(f"{probe.name}-{seed}")
        assert outcome.error is None
        outs["mergekit"].append(outcome.out)
        config, out = folder / f"{seed}.yml", folder / f"out-{seed}"
        config.write_text(place.text(probe.recipes[str(seed)], probe.family))
        api.merge(config, out, api.PlanOptions(seed=seed), api.IndexOptions(folder / "index"))
        outs["ours"].append(out)
    for program, paths in outs.items():
        updates = []
        for path in paths:
            merged = read_floats(path)
            updates.append({name: merged[name] - base[name] for name in base})
        yield program, updates


def task_vector(place: Place) -> dict[str, Floats]:
    """What is sparsified."""
    base, expert = (read_floats(place.family("f32") / name) for name in ("base", "expert1"))
    return {name: expert[name] - base[name] for name in base}


@pytest.mark.parametrize("probe", [moments(method, False) for method in METHODS], ids=str)
def test_kept_shares(probe: Probe, theirs: Callable[[str], Outcome], place: Place, tmp_path: Path) -> None:
    """Every run keeps about the share `density` of the entries, and no two runs the same ones."""
    delta = task_vector(place)
    entries = sum(int(np.count_nonzero(values)) for values in delta.values())
    deviation = (entries * DENSITY * (1 - DENSITY)) ** 0.5
    for program, updates in both(probe, theirs, place, tmp_path):
        masks = [np.concatenate([update[name].ravel() != 0 for name in delta]) for update in updates]
        for mask in masks:
            assert abs(int(mask.sum()) - DENSITY * entries) <= MOST * deviation, program
        # Two independent masks agree in about p² of the entries (a little more where ranks decide).
        together = np.mean([int((masks[n] & masks[n + 1]).sum()) for n in range(len(masks) - 1)]) / entries
        assert DENSITY**2 * 0.95 <= together <= DENSITY**2 * 1.15, program


@pytest.mark.parametrize("probe", [moments(method, True) for method in METHODS], ids=str)
def test_rescaled_updates(probe: Probe, theirs: Callable[[str], Outcome], place: Place, tmp_path: Path) -> None:
    """Every tensor's update has the L1 norm of the task vector; over the seeds the updates average to it."""
    delta = task_vector(place)
    for program, updates in both(probe, theirs, place, tmp_path):
        for update in updates:
            for name, values in delta.items():
                norm = float(np.abs(values, dtype=np.float64).sum())
                assert float(np.abs(update[name], dtype=np.float64).sum()) == pytest.approx(norm, rel=1e-3), name
        along = slope(delta, updates)
        assert 0.9 < along < 1.25, program


def slope(delta: dict[str, Floats], updates: list[dict[str, Floats]]) -> float:
    """⟨mean update, δ⟩ / ⟨δ, δ⟩: 1 for an unbiased mask, a little more where large entries are kept sooner."""
    mean = {name: np.mean([update[name].astype(np.float64) for update in updates], axis=0) for name in delta}
    inner = sum(float(np.sum(mean[name] * delta[name])) for name in delta)
    return inner / sum(float(np.sum(values.astype(np.float64) ** 2)) for values in delta.values())
