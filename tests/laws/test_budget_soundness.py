"""Invariant 1: expert bytes asked for never pass the budget, whatever it is."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe import api
from mergepipe.plan.access import read_set
from mergepipe.plan.cost import grid_of, largest_block
from mergepipe.plan.select import Policy
from tests.laws.world import METHODS, World

RELAXED = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("policy", list(Policy))
@RELAXED
@given(percent=st.integers(0, 99), method=st.sampled_from(sorted(METHODS)))
def test_a_share_is_never_passed(world: World, policy: Policy, percent: int, method: str) -> None:
    """Metered EXPERT bytes are at most the share of the full payload, and are what was planned."""
    _, result = world.merge(world.recipe(method), f"{percent}%", policy=policy)
    expert = result["expert_bytes"]
    assert expert["read"] <= Fraction(percent, 100) * expert["full"]
    assert expert["read"] == expert["planned"]
    assert sum(expert["by_source"].values()) == expert["read"]


@RELAXED
@given(cap=st.integers(0, 20_000), method=st.sampled_from(sorted(METHODS)))
def test_a_number_of_bytes_is_never_passed(world: World, cap: int, method: str) -> None:
    """A budget in bytes caps the metered bytes exactly."""
    _, result = world.merge(world.recipe(method), str(cap))
    assert result["expert_bytes"]["read"] <= cap


@RELAXED
@given(blocks=st.integers(0, 300))
def test_a_number_of_blocks_states_its_bytes(world: World, blocks: int) -> None:
    """A budget in blocks caps their number, and the bytes at that many of the largest block."""
    out, result = world.merge(world.recipe("task_arithmetic"), f"{blocks}blocks")
    expert = result["expert_bytes"]
    plan = api.recorded_plan(out)
    largest = largest_block(plan.logical, world.block_bytes)
    assert expert["read"] <= expert["budget"] == min(blocks * largest, expert["full"])
    read = sum(
        int(read_set(access, place, grid_of(tensor, world.block_bytes).count).sum())
        for tensor, access in zip(plan.logical.tensors, plan.tensors, strict=True)
        for place in range(len(tensor.experts))
    )
    assert read <= blocks
