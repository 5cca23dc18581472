"""Invariant 5: a certified bound holds for stored tensors, and nothing carries a number without its mark."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe.plan.select import Policy
from tests.laws.world import METHODS, World, difference


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("out_dtype", [None, "float32"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(percent=st.integers(0, 99), policy=st.sampled_from(list(Policy)))
def test_the_measured_error_is_within_the_bound(
    world: World, method: str, out_dtype: str | None, percent: int, policy: Policy
) -> None:
    """‖θ_budget − θ_full‖ as stored ≤ l2 + rounding_l2."""
    recipe = world.recipe(method, out_dtype)
    full, _ = world.merge(recipe)
    out, result = world.merge(recipe, f"{percent}%", policy=policy)
    bound = result["bound"]
    assert bound["kind"] == "certified"
    assert difference(out, full) <= bound["l2"] + bound["rounding_l2"]


def test_no_bound_is_said_with_its_reason(world: World) -> None:
    """Weights of mixed sign under `normalize` have no bound: kind none, no numbers, a reason."""
    recipe = world.recipe("ties")
    document = json.loads(recipe.read_text())
    document["models"][0]["parameters"]["weight"] = -0.5
    recipe.write_text(json.dumps(document))
    _, result = world.merge(recipe, "30%")
    bound = result["bound"]
    assert bound["kind"] == "none"
    assert bound["l2"] is None
    assert bound["rounding_l2"] is None
    assert bound["reason"]
