"""A family so small that training it takes a moment."""

from __future__ import annotations

import pytest

from mergepipe.demo.settings import DemoSettings, ModelShape


@pytest.fixture(scope="session")
def micro() -> DemoSettings:
    """Settings of a model of some 20,000 parameters and a few steps."""
    return DemoSettings(
        shape=ModelShape(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=48, context=16),
        batch=6,
        base_steps=30,
        expert_steps=8,
        windows=6,
    )
