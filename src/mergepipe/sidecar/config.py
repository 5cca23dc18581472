"""config.json of the merged model: the base's, with the dtype that was written."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mergepipe.checkpoint.names import text_key
from mergepipe.core.dtypes import torch_name

# transformers 5 writes the first, older versions the second; both read both.
_DTYPE_KEYS: Final = ("dtype", "torch_dtype")


def output_config(
    base_config: Mapping[str, Any], dtype_code: str | None, overrides: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """A copy of the base's config for an output whose float tensors are all stored as `dtype_code`.

    `overrides` replace what the base states under the same keys, at the top and in its language model's part.

    Every `dtype` or `torch_dtype` that the base states is replaced, in the parts of a composite model
    (`text_config`, `vision_config`, …) too; if the top states none, `dtype` is added. With None (each tensor
    keeps the base's dtype) and for a base without config.json (`{}`) nothing is changed.
    """
    config: dict[str, Any] = copy.deepcopy(dict(base_config))
    key = text_key(config)
    for part in (config, {} if key is None else config[key]):
        part.update({name: value for name, value in overrides.items() if name in part})
    if dtype_code is None or not config:
        return config
    name = torch_name(dtype_code)
    if not any(key in config for key in _DTYPE_KEYS):
        config["dtype"] = name
    _restate(config, name)
    return config


def config_text(config: Mapping[str, Any]) -> str:
    """The file's text: the base's key order, two spaces of indent, ASCII, a final newline."""
    return json.dumps(config, indent=2) + "\n"


def _restate(config: dict[str, Any], name: str) -> None:
    for key in _DTYPE_KEYS:
        if key in config:
            config[key] = name
    for key, value in config.items():
        if key.endswith("_config") and isinstance(value, dict):
            _restate(value, name)
