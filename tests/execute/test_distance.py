"""The measured distance of two models is the plain one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.errors import IncompatibleModels
from mergepipe.execute.distance import stored_distance
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import read_floats, write_checkpoint, write_family


def distance(left: Path, right: Path, meter: Meter | None = None) -> float:
    """The measured distance."""
    meter = meter or Meter()
    return stored_distance(open_checkpoint(str(left), meter), open_checkpoint(str(right), meter), meter)


def test_it_is_the_root_of_the_sum_of_squares(tmp_path: Path) -> None:
    """Over all float tensors, in float64; symmetric; read once each, charged to VERIFY."""
    family = write_family(tmp_path, experts=2, shards=2)
    meter = Meter()
    mine, theirs = read_floats(family.base), read_floats(family.experts[0])
    expected = math.sqrt(math.fsum(float(x) ** 2 for name in mine for x in np.ravel(mine[name] - theirs[name])))
    assert distance(family.base, family.experts[0], meter) == pytest.approx(expected, rel=1e-12)
    assert distance(family.experts[0], family.base) == distance(family.base, family.experts[0])
    payload = open_checkpoint(str(family.base), Meter()).payload_bytes
    assert meter.spent().bytes[Purpose.VERIFY] == 2 * payload
    assert distance(family.base, family.base) == 0.0


def test_dtypes_may_differ_and_integers_do_not_count(tmp_path: Path) -> None:
    """A model stored as F64 and one as BF16 are as far apart as their values; a tensor longer than a tile too."""
    values = np.random.default_rng(0).standard_normal((1 << 20) + 5)
    left: dict[str, tuple[str, Any]] = {"w": ("F64", values), "n": ("I64", np.arange(3)), "e": ("F32", np.zeros((0,)))}
    right = {"w": ("BF16", values), "n": ("I64", np.arange(3) + 1), "e": ("F32", np.zeros((0,)))}
    write_checkpoint(tmp_path / "left", left)
    write_checkpoint(tmp_path / "right", right)
    stored = read_floats(tmp_path / "right")["w"].astype(np.float64)
    assert distance(tmp_path / "left", tmp_path / "right") == pytest.approx(float(np.linalg.norm(values - stored)))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"w": ("F32", np.ones((2, 3)))}, "w is not the tensor"), ({"w": None}, "w is not the tensor"),
     ({"extra": ("F32", np.ones(2))}, "extra is a tensor")],
)  # fmt: skip
def test_models_of_other_tensors_have_no_distance(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """A tensor that one lacks, or of another shape: whichever side it is on."""
    tensors: dict[str, Any] = {"v": ("F32", np.ones(5)), "w": ("F32", np.ones((3, 2)))}
    write_checkpoint(tmp_path / "left", tensors)
    write_checkpoint(tmp_path / "right", {n: v for n, v in {**tensors, **change}.items() if v is not None})
    with pytest.raises(IncompatibleModels, match=words):
        distance(tmp_path / "left", tmp_path / "right")
    with pytest.raises(IncompatibleModels):
        distance(tmp_path / "right", tmp_path / "left")
