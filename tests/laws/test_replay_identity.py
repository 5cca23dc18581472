"""Invariant 4: a manifest replays to the same bytes, or names the input that changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mergepipe import api
from mergepipe.errors import ManifestMismatch, StaleIndex
from mergepipe.manifest.encode import MANIFEST_NAME
from tests.laws.world import METHODS, World


def files_of(out: Path) -> dict[str, bytes]:
    """Every published file but the manifest."""
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name != MANIFEST_NAME
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [None, "25%"])
def test_replay_gives_the_same_files(world: World, method: str, budget: str | None) -> None:
    """All files but the manifest are equal, and its identity section is."""
    out, _ = world.merge(world.recipe(method), budget, shard_bytes=4000)
    again = world.fresh()
    api.replay(out, again)
    assert files_of(again) == files_of(out)
    first, second = (json.loads((each / MANIFEST_NAME).read_text()) for each in (out, again))
    assert first["identity"] == second["identity"]
    assert api.verify(again).ok


def test_replay_needs_neither_index_nor_recipe(world: World) -> None:
    """The manifest alone replays: the recipe file and the index folder may be gone."""
    recipe = world.recipe("ties")
    index = world.folder / "index-gone"
    out, again = world.fresh(), world.fresh()
    api.merge(recipe, out, world.options("30%"), api.IndexOptions(index))
    shutil.rmtree(index)
    recipe.unlink()
    api.replay(out / MANIFEST_NAME, again)
    assert files_of(again) == files_of(out)


def flip_last_byte(path: Path) -> None:
    """Change one weight, nothing of the header."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("changed", ["base", "expert2"])
@pytest.mark.parametrize("budget", [None, "60%"])
def test_a_changed_input_is_named(tmp_path: Path, changed: str, budget: str | None) -> None:
    """A weight that the merge read and that is another now stops the replay, which leaves no OUT."""
    own = World.make(tmp_path, experts=3, hidden=16, vocab=64)
    out, result = own.merge(own.recipe("task_arithmetic"), budget)
    assert result["expert_bytes"]["read"] > 0
    for shard in (tmp_path / "family" / changed).glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        data[start:] = bytes(byte ^ 1 for byte in data[start:])
        shard.write_bytes(data)
    again = own.fresh()
    with pytest.raises((ManifestMismatch, StaleIndex), match=changed):
        api.replay(out, again)
    assert not again.exists()


def test_a_changed_header_is_named_before_anything_is_read(tmp_path: Path) -> None:
    """Another set of tensors is seen from the header alone."""
    own = World.make(tmp_path, experts=3, hidden=16, vocab=64)
    out, _ = own.merge(own.recipe("linear"))
    shutil.rmtree(own.experts[1])
    shutil.copytree(World.make(tmp_path / "other", experts=3, hidden=16, vocab=32).base, own.experts[1])
    with pytest.raises(ManifestMismatch, match="expert2"):
        api.replay(out, own.fresh())


def test_a_tampered_output_is_named(world: World) -> None:
    """`verify` names the file whose bytes are not those published."""
    out, _ = world.merge(world.recipe("linear"))
    assert api.verify(out).ok
    flip_last_byte(out / "model.safetensors")
    report = api.verify(out)
    assert not report.ok
    assert any("model.safetensors" in problem for problem in report.problems)
