"""The demo's training."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mergepipe.demo.evaluate import evaluate
from mergepipe.demo.folder import read_model
from mergepipe.demo.settings import DemoSettings
from mergepipe.demo.text import NAMES
from mergepipe.demo.train import train_family


def quiet(text: str) -> None:
    """Nobody listens."""


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory, micro: DemoSettings) -> Path:
    """A trained family."""
    folder = tmp_path_factory.mktemp("trained")
    train_family(folder, micro, quiet)
    return folder


def test_same_settings_same_bytes(family: Path, tmp_path: Path, micro: DemoSettings) -> None:
    """Training twice gives the same files, byte for byte."""
    train_family(tmp_path, micro, quiet)
    files = sorted(path.relative_to(family) for path in family.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert all((family / file).read_bytes() == (tmp_path / file).read_bytes() for file in files)


def test_another_seed_is_another_family(family: Path, tmp_path: Path, micro: DemoSettings) -> None:
    """The seed changes the weights."""
    short = replace(micro, seed=1, base_steps=1, expert_steps=1)
    train_family(tmp_path, short, quiet)
    name = "model.embed_tokens.weight"
    assert not np.array_equal(read_model(tmp_path / "base")[name], read_model(family / "base")[name])


def test_experts_are_fine_tunes_of_the_base(family: Path) -> None:
    """Every expert has the base's tensors, differs from it and from the others, but by little."""
    base = read_model(family / "base")
    name = "model.layers.0.mlp.up_proj.weight"
    deltas = []
    for domain in NAMES:
        expert = read_model(family / domain)
        assert {key: values.shape for key, values in expert.items()} == {k: v.shape for k, v in base.items()}
        deltas.append(expert[name] - base[name])
        assert 0 < np.linalg.norm(deltas[-1]) < 0.5 * np.linalg.norm(base[name])
    assert not np.array_equal(deltas[0], deltas[1])
    assert not np.array_equal(deltas[1], deltas[2])


def test_training_helps(family: Path, micro: DemoSettings) -> None:
    """The base has learned something of every domain; each expert is the best of all at its own."""
    losses = evaluate([family / name for name in ("base", *NAMES)], replace(micro, windows=64))
    by_model = {Path(folder).name: loss for folder, loss in losses.items()}
    for domain in NAMES:
        assert by_model["base"][domain] < math.log(micro.shape.vocabulary)
        assert min(by_model, key=lambda model: by_model[model][domain]) == domain


def test_settings_travel_as_json(micro: DemoSettings) -> None:
    """Settings come out of JSON as they went in, and the family records them."""
    assert DemoSettings.from_json(micro.to_json()) == micro


def test_the_family_records_how_it_was_made(family: Path, micro: DemoSettings) -> None:
    """The marker, written last, holds the settings and the versions that the weights depend on."""
    recorded = json.loads((family / "demo.json").read_text())
    assert recorded["settings"] == json.loads(micro.to_json())
    assert set(recorded) == {"settings", "python", "torch"}
