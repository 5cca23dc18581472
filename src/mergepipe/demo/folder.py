"""A model of the demo as a Hugging Face directory, written and read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.checkpoint.writer import ShardWriter
from mergepipe.core.dtypes import decode, dtype, encode
from mergepipe.demo.settings import ModelShape
from mergepipe.demo.tokenizer import END, START, tokenizer_files
from mergepipe.store.contract import Access, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

_STORED: Final = "BF16"

Weights = Mapping[str, NDArray[np.float32]]


def write_model(folder: Path, weights: Weights, shape: ModelShape) -> None:
    """Write weights (rounded to bfloat16), config and tokenizer into the new directory `folder`."""
    folder.mkdir(parents=True)
    kind = dtype(_STORED)
    entries = [(name, _STORED, values.shape) for name, values in weights.items()]
    with ShardWriter(folder / "model.safetensors", entries) as writer:
        for values in weights.values():
            writer.append(encode(values.reshape(-1), kind, np.empty(values.size * kind.itemsize, np.uint8)))
        writer.close()
    marks = {"bos_token_id": START, "eos_token_id": END}
    files = {
        "config.json": {**config(shape), **marks},
        "generation_config.json": marks,
        **tokenizer_files(shape.context),
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")


def read_model(folder: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors of a model directory, as float32."""
    meter = Meter()
    found = open_checkpoint(str(folder), meter)
    store = open_store(found.url, meter, Purpose.VERIFY, found.ref, Access.SEQUENTIAL)
    weights: dict[str, NDArray[np.float32]] = {}
    try:
        for tensor in found.tensors.values():
            raw = np.empty(len(tensor.extent), np.uint8)
            store.read_into(tensor.extent.key, tensor.extent.start, memoryview(raw))
            values = np.empty(tensor.elements, np.float32)
            decode(raw, tensor.storage, values)
            weights[tensor.name] = values.reshape(tensor.shape)
    finally:
        store.close()
    return weights


def config(shape: ModelShape) -> dict[str, Any]:
    """config.json, but for the tokens that mark a document's ends."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
    }
