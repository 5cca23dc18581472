"""Tensors that are copied from the base: differences are said, and their reads are charged to VERIFY."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.execute import buffers
from mergepipe.execute.buffers import differing_buffers
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import write_checkpoint

NAMES = ["steps", "flags", "empty"]
BASE: dict[str, tuple[str, Any]] = {
    "w": ("F32", np.ones(4)),
    "steps": ("I64", np.arange(5)),
    "flags": ("BOOL", np.array([True, False])),
    "empty": ("I32", np.zeros((0, 3))),
}


def model(folder: Path, **changes: tuple[str, Any] | None) -> Checkpoint:
    """A model like the base but for `changes`; None leaves a tensor out."""
    tensors = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
    return open_checkpoint(str(write_checkpoint(folder, tensors)), Meter())


def test_equal_buffers_are_not_mentioned(tmp_path: Path) -> None:
    """Nor are those an expert does not have."""
    base = model(tmp_path / "base")
    experts = [model(tmp_path / "same"), model(tmp_path / "without", steps=None)]
    assert differing_buffers(base, experts, NAMES, Meter()) == []


def test_other_values_and_other_kinds_are_said(tmp_path: Path) -> None:
    """By model and tensor, with what is done about it."""
    base = model(tmp_path / "base")
    a = model(tmp_path / "a", flags=("BOOL", np.array([True, True])))
    b = model(tmp_path / "b", steps=("I64", np.arange(9)), flags=("U8", np.array([1, 0])))
    assert differing_buffers(base, [a, b], NAMES, Meter()) == [
        f"{tmp_path / 'a'}: flags holds other values than the base's, which is copied",
        f"{tmp_path / 'b'}: steps is I64 [9], the base's is copied",
        f"{tmp_path / 'b'}: flags is U8 [2], the base's is copied",
    ]


def test_reads_are_charged_once_a_tensor_of_the_base(tmp_path: Path) -> None:
    """To VERIFY, never to EXPERT; the base's bytes are read once however many experts there are."""
    base = model(tmp_path / "base")
    experts = [model(tmp_path / name) for name in "abc"]
    meter = Meter()
    differing_buffers(base, experts, ["steps"], meter)
    assert meter.spent().bytes[Purpose.VERIFY] == 4 * 40
    assert meter.spent().by_source == {}


def test_large_buffers_are_said_not_to_be_compared(tmp_path: Path, monkeypatch: Any) -> None:
    """Above the limit nothing is read."""
    monkeypatch.setattr(buffers, "_LARGEST", 39)
    base, expert = model(tmp_path / "base"), model(tmp_path / "a")
    meter = Meter()
    remarks = differing_buffers(base, [expert], ["steps"], meter)
    assert remarks == [f"{tmp_path / 'a'}: steps (40 bytes) was not compared; the base's is copied"]
    assert meter.spent().bytes[Purpose.VERIFY] == 0
