"""Methods that rank within rows see whole rows, whatever reads, steps and tiles are: rows that end anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mergepipe import api
from mergepipe.core.leaves import LEAF
from mergepipe.errors import MemoryLimitTooSmall
from mergepipe.testing.checkpoints import read_floats, write_checkpoint
from tests.laws.world import published
from tests.operators import reference, reference_sparse
from tests.operators.reference import Floats

# Rows that end within leaves, that are longer than one, and a vector, which is one row.
SHAPES = {
    "model.embed_tokens.weight": (70, 1000),
    "model.layers.0.mlp.up_proj.weight": (2, LEAF + 4001),
    "model.layers.0.mlp.down_proj.weight": (400, 333),
    "model.norm.weight": (LEAF + 777,),
}
DENSITIES, EPSILON = (0.5, 0.25), 0.2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A bf16 base, a bf16 and a float32 expert."""
    folder, draw = tmp_path_factory.mktemp("rows"), np.random.default_rng(1)
    base = {name: 0.02 * draw.standard_normal(shape) for name, shape in SHAPES.items()}
    models = [write_checkpoint(folder / "base", {name: ("BF16", values) for name, values in base.items()})]
    for code in ("BF16", "F32"):
        moved = {name: (code, values + 1e-3 * draw.standard_t(3, values.shape)) for name, values in base.items()}
        models.append(write_checkpoint(folder / code, moved))
    return models


def recipe_of(models: list[Path], folder: Path, method: str) -> Path:
    """Both experts, rescaled."""
    experts = [
        {"model": str(path), "parameters": {"weight": 0.5, "density": density, "epsilon": EPSILON}}
        for path, density in zip(models[1:], DENSITIES, strict=True)
    ]
    document = {"merge_method": method, "base_model": str(models[0]), "models": experts, "out_dtype": "float32"}
    path = folder / "recipe.yml"
    path.write_text(json.dumps(document))
    return path


def expected(models: list[Path], method: str) -> dict[str, bytes]:
    """The whole-tensor formula in float32."""
    base, *experts = (read_floats(path) for path in models)
    merged = {}
    for name, values in base.items():
        theta, terms = values.ravel(), list[Floats]()
        for position, (expert, density) in enumerate(zip(experts, DENSITIES, strict=True)):
            delta = expert[name].ravel() - theta
            mask = reference_sparse.della_mask(delta, values.shape[-1], density, EPSILON, 0, position, name)
            factor = np.float32(reference.l1_factor(delta, mask))
            terms.append(np.where(mask, delta * factor, np.float32(0)))
        formula = reference.elected if method == "della" else reference.task_arithmetic
        merged[name] = formula(theta, terms, [0.5, 0.5], method == "della", 1.0).tobytes()
    return merged


@pytest.mark.parametrize("method", ["della", "della_linear"])
def test_rows_are_whole_whatever_is_read_at_once(models: list[Path], tmp_path: Path, method: str) -> None:
    """Blocks of a row, of several, of a whole tensor; the least memory or plenty, few threads or many: one result."""
    recipe, index = recipe_of(models, tmp_path, method), api.IndexOptions(tmp_path / "index")
    bits = expected(models, method)
    for number, block_bytes in enumerate((64, 100_000, 1 << 20, 1 << 30)):
        options = api.PlanOptions(block_bytes=block_bytes)
        least = api.Limits(memory=1, workers=1)
        for attempt in range(3):  # the index may need more than the merge, or less
            out = tmp_path / f"least-{number}-{attempt}"
            try:
                api.merge(recipe, out, options, index, least)
                break
            except MemoryLimitTooSmall as error:
                least = api.Limits(memory=error.needed, workers=1)
        assert published(out) == bits
        out = tmp_path / f"plenty-{number}"
        api.merge(recipe, out, options, index, api.Limits(workers=3))
        assert published(out) == bits


def test_a_budget_keeps_rows_whole_too(models: list[Path], tmp_path: Path) -> None:
    """Under a budget, whatever the memory: the same bytes, and the error within its bound."""
    recipe, index = recipe_of(models, tmp_path, "della_linear"), api.IndexOptions(tmp_path / "index")
    options = api.PlanOptions(budget="40%", block_bytes=1 << 16)
    result = api.merge(recipe, tmp_path / "part", options, index)
    api.merge(recipe, tmp_path / "small", options, index, api.Limits(memory=24 << 20, workers=1))
    api.merge(recipe, tmp_path / "full", api.PlanOptions(), index)
    assert published(tmp_path / "part") == published(tmp_path / "small")
    assert result["bound"]["kind"] == "certified"
    moved = api.distance(tmp_path / "part", tmp_path / "full")
    assert 0 < moved <= result["bound"]["l2"] + result["bound"]["rounding_l2"]
