"""testing/checkpoints.py: the models all other tests are made of."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from mergepipe.testing.checkpoints import (
    fine_tune,
    read_floats,
    read_tensors,
    tiny_llama,
    typed,
    write_checkpoint,
    write_family,
)


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_every_member(tmp_path: Path, tied: bool) -> None:
    """A family's directories are models to transformers, with no weight missing or left over."""
    family = write_family(tmp_path, experts=1, shards=3, tied=tied)
    for folder in (family.base, *family.experts):
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values())
        assert model.dtype == torch.bfloat16


def test_the_official_library_reads_every_kind_of_tensor(tmp_path: Path) -> None:
    """Own bytes of each dtype, of scalars and of empty tensors mean what the library reads."""
    folder = write_checkpoint(
        tmp_path,
        {
            "half": ("BF16", np.array([1.0, 2.5])),
            "small": ("F8_E4M3", np.array(2.0)),
            "wide": ("F64", np.array([1 / 3])),
            "empty": ("F16", np.zeros((0, 3))),
            "count": ("I64", np.array(7)),
            "mask": ("BOOL", np.array([True, False])),
        },
    )
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("half").tolist() == [1.0, 2.5]
        assert file.get_tensor("small").dtype == torch.float8_e4m3fn
        assert float(file.get_tensor("small")) == 2.0
        assert file.get_tensor("wide").tolist() == [1 / 3]
        assert file.get_tensor("empty").shape == (0, 3)
        assert int(file.get_tensor("count")) == 7
        assert file.get_tensor("mask").tolist() == [True, False]


def test_reading_back_is_exact_whatever_the_shards(tmp_path: Path) -> None:
    """`read_tensors` and `read_floats` give what was written, in one file or in four."""
    tensors = typed(tiny_llama(1), "BF16")
    one = write_checkpoint(tmp_path / "one", tensors)
    four = write_checkpoint(tmp_path / "four", tensors, shards=4)
    assert read_tensors(one) == read_tensors(four)
    expected = tensors["lm_head.weight"][1].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(read_floats(four)["lm_head.weight"], expected)
    index = json.loads((four / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()
    assert len(set(index["weight_map"].values())) == 4


def test_fine_tunes_touch_some_tensors_unevenly() -> None:
    """Deltas are reproducible, leave some tensors alone, and differ in size between tensors and between rows."""
    base = tiny_llama(0)
    tuned = fine_tune(base, seed=3)
    assert all(np.array_equal(tuned[name], again) for name, again in fine_tune(base, seed=3).items())
    norms = {name: float(np.linalg.norm(tuned[name] - base[name])) for name in base}
    touched = [norm for norm in norms.values() if norm]
    assert 0 < len(touched) < len(norms)
    assert max(touched) > 10 * min(touched)
    rows = np.linalg.norm(tuned["lm_head.weight"] - base["lm_head.weight"], axis=1)
    assert rows.max() > 5 * rows.min()


def test_more_shards_than_tensors_is_a_mistake(tmp_path: Path) -> None:
    """Every shard holds a tensor."""
    with pytest.raises(ValueError, match="2 shards for 1 tensors"):
        write_checkpoint(tmp_path, {"w": ("F32", np.zeros(1))}, shards=2)
