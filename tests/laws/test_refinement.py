"""A block all of whose deltas are read does not depend on what else is read."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe.plan.select import Policy
from tests.laws.world import METHODS, World, published, stored


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(percent=st.integers(1, 99), policy=st.sampled_from(list(Policy)))
def test_unread_deltas_are_zero_deltas(world: World, method: str, percent: int, policy: Policy) -> None:
    """A budgeted result is the naive merge with facts of whole deltas and every unread block's delta zero."""
    out, _ = world.merge(world.recipe(method), f"{percent}%", policy=policy)
    assert stored(world.expected(method, out)) == published(out)
