"""Which files of a model directory hold weights, by name alone."""

from __future__ import annotations

from typing import Final

_SUFFIXES: Final = (
    ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ckpt",
    ".tflite", ".pdparams",
)  # fmt: skip
_TRAINING_STEMS: Final = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")


def is_weight_file(key: str) -> bool:
    """Whether `key` looks like a file of tensors, of whatever framework: weights, adapter, optimizer state."""
    return key.lower().endswith(_SUFFIXES)


def is_weight_index(key: str) -> bool:
    """Whether `key` is an index of weight shards (`model.safetensors.index.json`)."""
    stem = key.lower().removesuffix(".index.json")
    return stem != key.lower() and is_weight_file(stem)


def is_adapter_file(key: str) -> bool:
    """Whether `key` belongs to a LoRA-like adapter as PEFT saves it."""
    return _base_name(key).startswith(("adapter_config.", "adapter_model."))


def is_training_state(key: str) -> bool:
    """Whether `key` is a trainer's own file of tensors or pickles, not a model's."""
    return is_weight_file(key) and _base_name(key).startswith(_TRAINING_STEMS)


def _base_name(key: str) -> str:
    return key.rpartition("/")[2]
