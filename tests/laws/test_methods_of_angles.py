"""Methods whose coefficients follow from inner products keep all promises under a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mergepipe import api
from tests.laws.world import World


@pytest.mark.parametrize(
    ("method", "models", "parameters"),
    [
        ("slerp", 1, {"t": 0.3}),
        ("nuslerp", 2, {"nuslerp_flatten": False}),
        ("multislerp", 3, {}),
        ("karcher", 3, {}),
        ("model_stock", 3, {}),
        ("model_stock", 3, {"filter_wise": True}),
    ],
)
def test_budgets_hold_for_methods_of_angles(
    world: World, tmp_path: Path, method: str, models: int, parameters: dict[str, Any]
) -> None:
    """Coefficients from exact inner products, then as any sum: read ≤ budget, error ≤ bound, replay equal."""
    weights = {"parameters": {"weight": 1.0}} if method in ("nuslerp", "multislerp") else {}
    document = {
        "merge_method": method,
        "base_model": str(world.base),
        "models": [{"model": str(path), **weights} for path in world.experts[:models]],
        "parameters": parameters,
    }
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(json.dumps(document))
    full, _ = world.merge(recipe)
    part, result = world.merge(recipe, "40%")
    assert result["expert_bytes"]["read"] <= 0.4 * result["expert_bytes"]["full"]
    bound = result["bound"]
    assert bound["kind"] == "certified"
    assert api.distance(full, part) <= bound["l2"] + bound["rounding_l2"]
    again = world.fresh()
    api.replay(part, again)
    assert (again / "model.safetensors").read_bytes() == (part / "model.safetensors").read_bytes()
