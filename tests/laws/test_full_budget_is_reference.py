"""Invariant 2: at full budget the result is the naive full-read merge, bit for bit."""

from __future__ import annotations

import pytest

from tests.laws.world import METHODS, World, published, stored


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [None, "100%", "250%"])
def test_full_read_equals_the_naive_merge(world: World, method: str, budget: str | None) -> None:
    """Every tensor of a full-read merge has the bytes of the whole-tensor float32 formula, rounded once."""
    out, result = world.merge(world.recipe(method), budget)
    assert stored(world.expected(method)) == published(out)
    assert result["expert_bytes"]["read"] == result["expert_bytes"]["full"]
    assert result["bound"]["kind"] == "certified"
    assert result["bound"]["l2"] == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", ["F32", "F16"])
def test_the_output_dtype_only_changes_the_last_rounding(world: World, method: str, code: str) -> None:
    """`out_dtype` rounds the same float32 result once; inputs are never rounded."""
    names = {"F32": "float32", "F16": "float16"}
    out, _ = world.merge(world.recipe(method, out_dtype=names[code]))
    assert stored(world.expected(method), code) == published(out)
