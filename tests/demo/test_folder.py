"""The demo's models as directories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mergepipe.core.dtypes import dtype
from mergepipe.demo.folder import read_model, write_model
from mergepipe.demo.settings import ModelShape


def test_read_back_as_stored(tmp_path: Path) -> None:
    """What is read is what was written, rounded to bfloat16, with its shape."""
    values = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    weights = {"a.weight": values, "b.weight": np.ones(3, np.float32)}
    write_model(tmp_path / "model", weights, ModelShape())
    found = read_model(tmp_path / "model")
    assert list(found) == ["a.weight", "b.weight"]
    np.testing.assert_array_equal(found["a.weight"], values.astype(dtype("BF16").numpy).astype(np.float32))
    np.testing.assert_array_equal(found["b.weight"], weights["b.weight"])


def test_has_all_that_a_model_directory_has(tmp_path: Path) -> None:
    """Config, generation config and tokenizer are there and agree on size and marks."""
    write_model(tmp_path / "model", {"a": np.zeros(1, np.float32)}, ModelShape(context=48))
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "model").glob("*.json")}
    assert set(read) >= {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert read["config.json"]["vocab_size"] == len(read["tokenizer.json"]["model"]["vocab"])
    assert read["config.json"]["bos_token_id"] == read["generation_config.json"]["bos_token_id"]
    assert read["config.json"]["max_position_embeddings"] == read["tokenizer_config.json"]["model_max_length"] == 48


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A model is written to a new directory only."""
    with pytest.raises(FileExistsError):
        write_model(tmp_path, {"a": np.zeros(1, np.float32)}, ModelShape())
