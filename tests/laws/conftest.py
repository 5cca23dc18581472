"""A small family on disk and a way to merge it, shared by the laws."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from tests.laws.world import World  # noqa: E402 - the path must be set first


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Three bf16 experts of a two-layer Llama; tensors of a few hundred elements."""
    return World.make(tmp_path_factory.mktemp("world"), experts=3, hidden=16, vocab=64)
