"""The family in its folder."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from mergepipe.demo import family as module
from mergepipe.demo.family import ensure_family, require_torch
from mergepipe.demo.settings import DemoSettings
from mergepipe.demo.text import NAMES
from mergepipe.errors import UsageError


def quiet(text: str) -> None:
    """Nobody listens."""


def test_made_once(tmp_path: Path, micro: DemoSettings) -> None:
    """A family is trained where there is none, found again, and made anew for other settings."""
    folder = tmp_path / "demo"
    said: list[str] = []
    family = ensure_family(folder, micro, said.append)
    assert set(family.experts) == set(NAMES)
    assert all((path / "model.safetensors").is_file() for path in (family.base, *family.experts.values()))
    assert sum(line.startswith("trained ") for line in said) == 1 + len(NAMES)
    before = (family.base / "model.safetensors").read_bytes()
    said.clear()
    ensure_family(folder, micro, said.append)
    assert said == []
    ensure_family(folder, replace(micro, seed=5), said.append)
    assert (family.base / "model.safetensors").read_bytes() != before


def test_a_killed_training_is_started_anew(tmp_path: Path, micro: DemoSettings) -> None:
    """What a killed run left is cleared, and no half family is ever taken for one."""
    (tmp_path / "family.partial" / "base").mkdir(parents=True)
    family = ensure_family(tmp_path, replace(micro, base_steps=1, expert_steps=1), quiet)
    assert (family.base / "model.safetensors").is_file()
    assert not (tmp_path / "family.partial").exists()


@pytest.mark.parametrize("name", ["notes.txt", "family/model.safetensors"])
def test_folders_of_others_are_left_alone(tmp_path: Path, micro: DemoSettings, name: str) -> None:
    """A folder that holds something else is refused, and stays as it was."""
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(UsageError, match="is no earlier demo: name a new folder"):
        ensure_family(tmp_path, micro, quiet)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == "mine"


def test_without_torch(tmp_path: Path, micro: DemoSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch the error says how to get it, and no folder is made."""
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(UsageError, match=r"pip install 'mergepipe\[demo\]'"):
        ensure_family(tmp_path / "demo", micro, quiet)
    assert not (tmp_path / "demo").exists()


def test_with_torch() -> None:
    """Where torch is installed nothing is asked for."""
    require_torch()
