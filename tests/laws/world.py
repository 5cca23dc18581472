"""Merging on the laws' terms: recipes by arguments, outputs as arrays, an independent reference beside."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mergepipe import api
from mergepipe.plan.access import read_set
from mergepipe.testing.checkpoints import read_floats, read_tensors, write_family
from tests.operators import reference, reference_sparse
from tests.operators.reference import Floats


# method → (merge parameters, parameters of each model) that differ enough to matter. What follows a "+" in a name
# tells recipes of one method apart.
def _models(*each: tuple[float, float], **more: float) -> list[dict[str, Any]]:
    return [{"weight": weight, "density": density, **more} for weight, density in each]


METHODS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "linear": ({"normalize": True}, [{"weight": 0.5}, {"weight": 0.3}, {"weight": 0.2}]),
    "task_arithmetic": ({"lambda": 0.8}, [{"weight": 0.4}, {"weight": -0.3}, {"weight": 0.7}]),
    "ties": ({"normalize": True}, _models((0.5, 0.5), (0.5, 0.3), (1.0, 0.9))),
    "dare_linear": ({"rescale": True}, _models((0.5, 0.5), (0.4, 0.25), (0.3, 1.0))),
    "dare_ties": ({"rescale": True}, _models((0.5, 0.5), (0.4, 0.25), (0.3, 0.7))),
    "ties+rescale": ({"rescale": True, "normalize": True}, _models((0.5, 0.5), (0.5, 0.3), (1.0, 0.007))),
    "breadcrumbs": ({"rescale": True}, _models((0.5, 0.5), (0.4, 0.85), (0.3, 0.3), gamma=0.05)),
    "breadcrumbs_ties": ({"rescale": True}, _models((0.5, 0.5), (0.4, 0.98), (0.3, 0.3), gamma=0.03)),
    "della_linear": ({}, _models((0.5, 0.5), (0.4, 0.25), (0.3, 1.0), epsilon=0.2)),
    "della": ({"normalize": True}, _models((0.5, 0.5), (0.4, 0.25), (0.3, 0.7), epsilon=0.2)),
}


@dataclass
class World:
    """A family and a place for recipes, indices and outputs. Blocks are 64 bytes: many, even of tiny tensors."""

    folder: Path
    base: Path
    experts: tuple[Path, ...]
    block_bytes: int = 64
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def make(cls, folder: Path, experts: int, hidden: int, vocab: int, **more: Any) -> World:
        """Write the family."""
        family = write_family(folder / "family", experts=experts, hidden=hidden, vocab=vocab, **more)
        return cls(folder, family.base, family.experts)

    def recipe(self, method: str, out_dtype: str | None = None, seed: int = 0) -> Path:
        """One of `METHODS` over all experts."""
        merged, models = METHODS[method]
        document = {
            "merge_method": method.partition("+")[0],
            "models": [
                {"model": str(path), "parameters": parameters}
                for path, parameters in zip(self.experts, models, strict=True)
            ],
            "parameters": merged,
            "seed": seed,
        }
        if method != "linear":
            document["base_model"] = str(self.base)
        if out_dtype is not None:
            document["out_dtype"] = out_dtype
        path = self.folder / f"recipe-{next(self._numbers)}.yml"
        path.write_text(json.dumps(document))  # JSON is YAML
        return path

    def options(self, budget: str | None = None, **more: Any) -> api.PlanOptions:
        """Plan options with this world's block size."""
        return api.PlanOptions(budget=budget, block_bytes=self.block_bytes, **more)

    @property
    def index(self) -> api.IndexOptions:
        """The world's own index folder."""
        return api.IndexOptions(self.folder / "index")

    def fresh(self) -> Path:
        """A path nothing is at."""
        return self.folder / f"out-{next(self._numbers)}"

    def merge(
        self, recipe: Path, budget: str | None = None, limits: api.Limits | None = None, **more: Any
    ) -> tuple[Path, Mapping[str, Any]]:
        """Merge into a fresh OUT; returns it and the result object."""
        out = self.fresh()
        result = api.merge(recipe, out, self.options(budget, **more), self.index, limits or api.Limits())
        return out, result

    def expected(self, method: str, out: Path | None = None, seed: int = 0) -> dict[str, Floats]:
        """The naive float32 merge; with `out`, of the deltas its manifest says were read, all others zero."""
        merged, models = METHODS[method]
        # linear has no base: its first model is the reference and has a weight of its own.
        anchor, paths = (self.experts[0], self.experts[1:]) if method == "linear" else (self.base, self.experts)
        base, members = read_floats(anchor), [read_floats(path) for path in paths]
        plan = None if out is None else api.recorded_plan(out)
        results = {}
        for name, values in base.items():
            theta = values.astype(np.float32).ravel()
            deltas = [member[name].astype(np.float32).ravel() - theta for member in members]
            keep = [np.ones(theta.size, bool) for _ in deltas]
            if plan is not None:
                number = [tensor.name for tensor in plan.logical.tensors].index(name)
                block = plan.tensors[number].block
                blocks = -(-theta.size // block)
                keep = [
                    np.repeat(read_set(plan.tensors[number], i, blocks), block)[: theta.size]
                    for i in range(len(deltas))
                ]
            row = values.shape[-1] if values.ndim else 1
            result = _merged(method, theta, deltas, keep, merged, models, seed, name, row)
            results[name] = result.reshape(values.shape)
        return results


def _merged(
    method: str, theta: Floats, deltas: Sequence[Floats], keep: Sequence[Any], merged: Mapping[str, Any],
    models: Sequence[Mapping[str, Any]], seed: int, name: str, row: int,
) -> Floats:  # fmt: skip
    weights = [each["weight"] for each in models]
    if method == "linear":
        masked = [np.where(k, d, np.float32(0)) for k, d in zip(keep, deltas, strict=True)]
        return reference.linear(theta, masked, weights[1:], weights[0], merged["normalize"])
    sparse = list(deltas)
    for position, (delta, model) in enumerate(zip(deltas, models, strict=True)):
        if model.get("density", 1.0) < 1.0:
            mask = _mask(method, delta, model, seed, position, name, row)
            factor = reference.l1_factor(delta, mask) if merged.get("rescale", method.startswith("della")) else 1.0
            sparse[position] = np.where(mask, delta * np.float32(factor), np.float32(0))
    sparse = [np.where(k, d, np.float32(0)) for k, d in zip(keep, sparse, strict=True)]
    lambda_ = merged.get("lambda", 1.0)
    if method.startswith(("ties", "dare_ties", "breadcrumbs_ties")) or method == "della":
        return reference.elected(theta, sparse, weights, merged.get("normalize", False), lambda_)
    return reference.task_arithmetic(theta, sparse, weights, False, lambda_)


def _mask(
    method: str, delta: Floats, model: Mapping[str, Any], seed: int, position: int, name: str, row: int
) -> NDArray[np.bool_]:
    """What a method keeps of a whole delta."""
    density = model["density"]
    if method.startswith("ties"):
        return reference_sparse.trimmed_mask(delta, density)
    if method.startswith("breadcrumbs"):
        return reference_sparse.breadcrumbs_mask(delta, density, model["gamma"])
    if method.startswith("della"):
        return reference_sparse.della_mask(delta, row, density, model["epsilon"], seed, position, name)
    return reference.dare_mask(delta.size, density, seed, position, name)


def stored(values: Mapping[str, Floats], code: str = "BF16") -> dict[str, bytes]:
    """Floats rounded as the output stores them."""
    kinds = {"BF16": ml_dtypes.bfloat16, "F32": np.float32, "F16": np.float16}
    return {name: array.astype(kinds[code]).tobytes() for name, array in values.items()}


def published(out: Path) -> dict[str, bytes]:
    """The bytes of every tensor of a model."""
    return {name: raw for name, (_, raw, _) in read_tensors(out).items()}


def difference(left: Path, right: Path) -> float:
    """‖θ_left − θ_right‖₂ of two stored models, in float64, by numpy alone."""
    mine, theirs = read_floats(left), read_floats(right)
    return float(np.sqrt(sum(np.sum((mine[n].astype(np.float64) - theirs[n].astype(np.float64)) ** 2) for n in mine)))
