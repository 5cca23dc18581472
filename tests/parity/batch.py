"""Cases made concrete: recipes with real paths, mergekit's jobs, and our own merge of the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mergepipe import api
from mergepipe.core.random import mask_key, uniform16
from mergepipe.testing.checkpoints import read_tensors
from tests.parity.cases import Case, Recipe
from tests.parity.families import write_models
from tests.parity.peer import Job

SEED = 7


@dataclass(frozen=True, slots=True)
class Probe:
    """Recipes for mergekit as they stand, by label, with the MergeOptions of each where there are any."""

    name: str
    family: str
    recipes: Mapping[str, Recipe] = field(hash=False)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that keeps families, random lanes and mergekit's outputs."""

    folder: Path

    def family(self, name: str) -> Path:
        """The folder of a family's models, written on first use."""
        there = self.folder / "families" / name
        if not there.exists():
            write_models(there, name)
        return there

    def text(self, recipe: Recipe, family: str, **more: Any) -> str:
        """A recipe as YAML (JSON is YAML), its models' names replaced by paths."""
        return json.dumps({**_located(recipe, self.family(family)), **more})

    def texts(self, case: Case, out_dtype: str, recipe: Recipe) -> str:
        """One recipe, or several documents, in the given output dtype."""
        more = {"dtype": case.rounding, "out_dtype": out_dtype}
        documents = case.documents or (recipe,)
        return "\n---\n".join(self.text(document, case.family, **more) for document in documents)

    def job(self, case: Case, out_dtype: str) -> Job:
        """What mergekit is to run for a case."""
        return Job(
            recipe=self.texts(case, out_dtype, case.peer_recipe or case.recipe),
            out=self.folder / "peer" / f"{case.name}-{out_dtype}",
            kind="multi" if case.documents else "merge",
            lanes=self.lanes(case) if case.masks else None,
        )

    def probe_jobs(self, probe: Probe) -> dict[str, Job]:
        """What mergekit is to run for a probe, by label."""
        return {
            label: Job(
                recipe=self.text(recipe, probe.family),
                out=self.folder / "peer" / f"{probe.name}-{label}",
                options=probe.options.get(label, {}),
            )
            for label, recipe in probe.recipes.items()
        }

    def lanes(self, case: Case) -> Path:
        """Our random lanes for every tensor and expert of a case, in the file `run_peer.py` wants."""
        path = self.folder / "lanes" / f"{case.family}-{case.masks}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            shapes = {name: shape for name, (_, _, shape) in read_tensors(self.family(case.family) / "base").items()}
            lanes: dict[str, Any] = {
                f"{position}/{name}": uniform16(mask_key(SEED, case.masks, position, name), 0, int(np.prod(shape)))
                for position in range(4)
                for name, shape in shapes.items()
            }
            np.savez(path, **lanes)
        return path

    def ours(self, case: Case, out_dtype: str, folder: Path) -> Path:
        """Merge a case by MergePipe at full read; returns the model's folder."""
        config, out = folder / "recipe.yml", folder / "out"
        config.write_text(self.texts(case, out_dtype, case.recipe))
        return self.merged(config, out)

    def ours_of(self, recipe: Recipe, family: str, folder: Path) -> Path:
        """Merge one recipe of this suite's notation, as it is."""
        config, out = folder / "recipe.yml", folder / "out"
        config.write_text(self.text(recipe, family))
        return self.merged(config, out)

    def merged(self, config: Path, out: Path) -> Path:
        """Merge a recipe file at full read, with this suite's seed and an index of its own; returns `out`."""
        api.merge(config, out, api.PlanOptions(seed=SEED), api.IndexOptions(out.parent / "index"))
        return out


def _located(value: Any, family: Path) -> Any:
    """`value` with "@name" replaced by the path of that model."""
    if isinstance(value, str) and value.startswith("@"):
        return str(family / value[1:])
    if isinstance(value, Mapping):
        return {key: _located(each, family) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_located(each, family) for each in value]
    return value
