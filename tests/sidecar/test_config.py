"""sidecar/config.py: the output's config says what was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mergepipe.sidecar.config import config_text, output_config


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ({"torch_dtype": "float32", "a": 1}, {"torch_dtype": "bfloat16", "a": 1}),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}),
        ({"dtype": "float32", "torch_dtype": None}, {"dtype": "bfloat16", "torch_dtype": "bfloat16"}),
        ({"a": 1}, {"a": 1, "dtype": "bfloat16"}),
        (
            {"text_config": {"torch_dtype": "float16"}, "vision_config": {"depth": 1}},
            {"text_config": {"torch_dtype": "bfloat16"}, "vision_config": {"depth": 1}, "dtype": "bfloat16"},
        ),
        ({"dtype": "float32", "loader": {"dtype": "int8"}}, {"dtype": "bfloat16", "loader": {"dtype": "int8"}}),
        ({}, {}),
    ],
)
def test_every_stated_dtype_is_the_written_one(base: dict[str, Any], expected: dict[str, Any]) -> None:
    """Either key, nested configs too; added at the top only where the base has none; an absent config stays absent."""
    assert output_config(base, "BF16") == expected


def test_the_base_is_neither_changed_nor_shared() -> None:
    """The base's config is a value of its checkpoint: nothing writes through it."""
    base = {"text_config": {"dtype": "float32"}}
    output_config(base, "F16")["text_config"]["x"] = 1
    assert base == {"text_config": {"dtype": "float32"}}


def test_mixed_dtypes_keep_the_bases_config() -> None:
    """Without one output dtype the config's own statement is left as it is."""
    assert output_config({"torch_dtype": "float32"}, None) == {"torch_dtype": "float32"}


def test_text_reads_back_in_the_bases_order() -> None:
    """The file's text is stable, ASCII, and the same config again, Infinity included."""
    config = {"b": 1, "a": {"z": "é", "y": float("inf")}}
    text = config_text(config)
    assert text.isascii()
    assert text.endswith("}\n")
    assert json.loads(text) == config
    assert list(json.loads(text)) == ["b", "a"]
