"""A pass over models ends with an error if one of their files is not what it was."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from mergepipe.checkpoint.assembled import AssembledCheckpoint
from mergepipe.errors import SourceError
from mergepipe.index.reading import counter, open_inputs
from mergepipe.store.meter import Meter
from tests.index.pairs import pairs_of, small_family


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_model_that_changes_is_named(tmp_path: Path, number: int) -> None:
    """The base too; asking costs no bytes."""
    models, meter = small_family(tmp_path), Meter()

    def touch_while_open() -> None:
        with open_inputs(pairs_of(models), meter) as stores:
            assert list(stores) == [str(path) for path in models]
            os.utime(models[number] / "model.safetensors", ns=(1, 1))

    with pytest.raises(SourceError, match=rf"{models[number].name}/model\.safetensors: changed while"):
        touch_while_open()
    assert sum(meter.spent().bytes.values()) == 0


def test_models_that_tensors_are_assembled_from_are_watched(tmp_path: Path) -> None:
    """An assembled checkpoint has no files of its own: those of its sources count."""
    models = small_family(tmp_path)
    pair = pairs_of(models)[0]
    sources = {0: pair.base, 1: pair.expert}
    base, expert = (AssembledCheckpoint(f"{n}", f"assembled:{n}", {}, (), {}, sources=sources) for n in (0, 1))
    together = replace(pair, base=base, expert=expert, tensors=())
    with open_inputs([together], Meter()) as stores:
        assert list(stores) == ["assembled:0", "assembled:1"]
    with pytest.raises(SourceError, match="expert1/model"), open_inputs([together], Meter()):
        os.utime(models[1] / "model.safetensors", ns=(1, 1))


def test_progress_is_the_sum(tmp_path: Path) -> None:
    """Of what all workers tell; without a listener nothing happens."""
    told: list[tuple[str, int, int]] = []
    advance = counter(lambda *each: told.append(each), "facts", 9)
    for count in (4, 0, 5):
        advance(count)
    assert told == [("facts", 4, 9), ("facts", 4, 9), ("facts", 9, 9)]
    counter(None, "facts", 9)(9)
