"""Methods that need no base and no second model give one model as it is; with a base, one expert is enough."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mergepipe.operators.registry import names, operator
from mergepipe.testing.checkpoints import read_floats
from tests.laws.world import World

# Their own rules: slices, exactly two models, at least two experts.
OTHERS = {"passthrough", "slerp", "nuslerp", "nearswap", "arcee_fusion", "model_stock"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A base and one expert."""
    return World.make(tmp_path_factory.mktemp("one"), experts=1, hidden=8, vocab=11)


def written(world: World, method: str, **more: object) -> Path:
    """A recipe of the only expert."""
    model = {"model": str(world.experts[0]), "parameters": {"weight": 1.0}}
    if "weight" not in {each.name for each in operator(method).parameters}:
        del model["parameters"]
    path = world.folder / f"{method}-{len(more)}.yml"
    path.write_text(json.dumps({"merge_method": method, "models": [model], "out_dtype": "float32", **more}))
    return path


@pytest.mark.parametrize("method", [n for n in names() if not operator(n).needs_base and n not in OTHERS])
def test_one_model_without_a_base_is_itself(world: World, method: str) -> None:
    """To the bit."""
    out, _ = world.merge(written(world, method))
    merged, given = read_floats(out), read_floats(world.experts[0])
    assert merged.keys() == given.keys()
    for name, values in given.items():
        np.testing.assert_array_equal(merged[name], values.astype(np.float32), name)


@pytest.mark.parametrize("method", [n for n in names() if n not in OTHERS])
def test_one_expert_over_a_base_is_enough(world: World, method: str) -> None:
    """No method needs a second one to divide or choose by."""
    out, _ = world.merge(written(world, method, base_model=str(world.base)))
    assert all(np.isfinite(values).all() for values in read_floats(out).values())
