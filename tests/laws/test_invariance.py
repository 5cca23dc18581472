"""Invariants 3 and 6: what only changes speed changes no byte, and memory stays within its limit."""

from __future__ import annotations

from typing import Any

import pytest

from mergepipe import api
from mergepipe.errors import MemoryLimitTooSmall
from mergepipe.execute import combine
from mergepipe.operators.kernel import kernel_for
from tests.laws.world import METHODS, World, published


@pytest.mark.parametrize("method", METHODS)
def test_threads_and_memory_change_no_byte(world: World, method: str) -> None:
    """One thread or many, little memory or much: the same tensors and the same plan."""
    recipe = world.recipe(method)
    for budget in (None, "40%"):
        reference, first = world.merge(recipe, budget)
        for limits in (api.Limits(memory=16 << 20, readers=1, workers=1), api.Limits(readers=7, workers=3)):
            out, result = world.merge(recipe, budget, limits)
            assert published(out) == published(reference)
            assert result["plan_digest"] == first["plan_digest"]


@pytest.mark.parametrize("method", METHODS)
def test_compiled_kernels_change_no_byte(world: World, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large merge looks for compiled kernels, a small one does not; both write the same."""
    kernels = 0
    found = kernel_for

    def counted(*arguments: Any) -> Any:
        nonlocal kernels
        kernel = found(*arguments)
        kernels += kernel is not None
        return kernel

    recipe = world.recipe(method)
    for budget in (None, "40%"):
        reference, first = world.merge(recipe, budget)
        with monkeypatch.context() as patch:
            patch.setattr(combine, "_WORTH_COMPILING", 0)
            patch.setattr(combine, "kernel_for", counted)
            out, result = world.merge(recipe, budget)
        assert published(out) == published(reference)
        assert result["plan_digest"] == first["plan_digest"]
    assert kernels > 0


@pytest.mark.parametrize("method", METHODS)
def test_the_block_grid_changes_no_byte_at_full_budget(world: World, method: str) -> None:
    """Blocks are how data is chosen, never what a full read computes."""
    recipe = world.recipe(method)
    reference, _ = world.merge(recipe)
    for block_bytes in (32, 1 << 20):
        out = world.fresh()
        api.merge(recipe, out, api.PlanOptions(block_bytes=block_bytes), world.index)
        assert published(out) == published(reference)


def test_too_little_memory_is_said_before_anything_is_read(world: World) -> None:
    """The limit names what it would take; OUT does not appear."""
    out = world.fresh()
    with pytest.raises(MemoryLimitTooSmall, match="raise --memory to at least") as caught:
        api.merge(world.recipe("ties"), out, world.options(), world.index, api.Limits(memory=100_000))
    assert caught.value.needed > caught.value.limit
    assert not out.exists()
