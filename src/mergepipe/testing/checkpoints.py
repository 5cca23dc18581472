"""Tiny model directories for tests: written and read back by code that shares nothing with `checkpoint/`.

The families are small but not tame: deltas are heavy-tailed, differ in size from tensor to tensor and
from row to row, and some tensors are not touched at all.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.dtypes import decode, dtype, encode, torch_name

Values = NDArray[Any]
TypedTensors = Mapping[str, tuple[str, Values]]


class Family(NamedTuple):
    """Directories of one base and its experts."""

    base: Path
    experts: tuple[Path, ...]


def stored_bytes(code: str, values: Values) -> bytes:
    """`values` as a safetensors file of dtype `code` holds them: floats rounded to nearest even, others cast."""
    kind = dtype(code)
    if not kind.is_float:
        return np.ascontiguousarray(values).astype(kind.numpy).tobytes()
    wide = np.ascontiguousarray(values).astype(kind.compute).reshape(-1)
    return encode(wide, kind, np.empty(wide.size * kind.itemsize, np.uint8)).tobytes()


def safetensors_bytes(
    tensors: Sequence[tuple[str, str, tuple[int, ...], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A whole safetensors file of `(name, dtype code, shape, raw bytes)` in the given order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata is not None else {}
    position = 0
    for name, code, shape, raw in tensors:
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, position + len(raw)]}
        position += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, _, raw in tensors)


def write_checkpoint(
    folder: Path, tensors: TypedTensors, config: Mapping[str, Any] | None = None, shards: int = 1
) -> Path:
    """Write `{name: (dtype code, array)}` as a Hugging Face directory and return `folder`.

    Tensors keep their order. With `shards > 1` (at most one per tensor) there are that many files and an
    index; with 1 there is `model.safetensors` only. `config` becomes config.json, None writes none.
    """
    if not 1 <= shards <= max(1, len(tensors)):
        raise ValueError(f"{shards} shards for {len(tensors)} tensors")
    folder.mkdir(parents=True, exist_ok=True)
    laid = [(name, code, np.shape(values), stored_bytes(code, values)) for name, (code, values) in tensors.items()]
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = laid[number * len(laid) // shards : (number + 1) * len(laid) // shards]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        weight_map |= {name: file for name, _, _, _ in part}
        (folder / file).write_bytes(safetensors_bytes(part, {"format": "pt"}))
    if shards > 1:
        index = {"metadata": {"total_size": sum(len(raw) for _, _, _, raw in laid)}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def read_tensors(folder: Path) -> dict[str, tuple[str, bytes, tuple[int, ...]]]:
    """`{name: (dtype code, raw bytes, shape)}` of all `*.safetensors` in `folder`; a name twice is a `ValueError`."""
    found: dict[str, tuple[str, bytes, tuple[int, ...]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        start = 8 + struct.unpack("<Q", content[:8])[0]
        for name, entry in json.loads(content[8:start]).items():
            if name == "__metadata__":
                continue
            if name in found:
                raise ValueError(f"{name} is in two files of {folder}")
            first, last = entry["data_offsets"]
            found[name] = entry["dtype"], content[start + first : start + last], tuple(entry["shape"])
    return found


def read_floats(folder: Path) -> dict[str, Values]:
    """The float tensors of `folder` as arrays, exact: float64 for F64, float32 for all others."""
    values: dict[str, Values] = {}
    for name, (code, raw, shape) in read_tensors(folder).items():
        kind = dtype(code)
        if kind.is_float:
            flat = np.frombuffer(raw, np.uint8)
            values[name] = decode(flat, kind, np.empty(flat.size // kind.itemsize, kind.compute)).reshape(shape)
    return values


def tiny_llama(
    seed: int,
    layers: int = 2,
    hidden: int = 8,
    heads: int = 2,
    kv_heads: int = 1,
    inter: int = 12,
    vocab: int = 32,
    tied: bool = False,
) -> dict[str, Values]:
    """Float32 weights of a Llama under its usual names; no `lm_head` when `tied`."""
    generator = np.random.default_rng(seed)
    head = hidden // heads

    def matrix(rows: int, columns: int) -> Values:
        return np.asarray(generator.standard_normal((rows, columns)) / columns**0.5, np.float32)

    def norm() -> Values:
        return np.asarray(1 + 0.1 * generator.standard_normal(hidden), np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": norm(),
            f"{prefix}.self_attn.q_proj.weight": matrix(heads * head, hidden),
            f"{prefix}.self_attn.k_proj.weight": matrix(kv_heads * head, hidden),
            f"{prefix}.self_attn.v_proj.weight": matrix(kv_heads * head, hidden),
            f"{prefix}.self_attn.o_proj.weight": matrix(hidden, heads * head),
            f"{prefix}.post_attention_layernorm.weight": norm(),
            f"{prefix}.mlp.gate_proj.weight": matrix(inter, hidden),
            f"{prefix}.mlp.up_proj.weight": matrix(inter, hidden),
            f"{prefix}.mlp.down_proj.weight": matrix(hidden, inter),
        }
    tensors["model.norm.weight"] = norm()
    if not tied:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    return tensors


def llama_config(
    layers: int = 2,
    hidden: int = 8,
    heads: int = 2,
    kv_heads: int = 1,
    inter: int = 12,
    vocab: int = 32,
    tied: bool = False,
    dtype: str = "BF16",
) -> dict[str, Any]:
    """The config.json that goes with `tiny_llama` of the same sizes; `dtype` is a safetensors code."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": torch_name(dtype),
    }


def fine_tune(
    tensors: Mapping[str, Values], seed: int, scale: float = 0.02, untouched: float = 0.2
) -> dict[str, Values]:
    """A perturbed copy: `scale` is the typical size of a delta against its tensor's own root mean square.

    Deltas follow Student's t with 3 degrees of freedom, times a factor per tensor and one per row; the
    share `untouched` of the tensors (rounded down) is kept as it is. A tensor's delta depends on its
    name and `seed` only.
    """
    names = sorted(tensors)
    order = np.random.default_rng(seed).permutation(len(names))
    kept = {names[position] for position in order[: int(untouched * len(names))]}
    tuned: dict[str, Values] = {}
    for name, values in tensors.items():
        if name in kept or values.size == 0:
            tuned[name] = values.copy()
            continue
        key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")
        generator = np.random.default_rng(key)
        size = scale * generator.lognormal(0, 1) * (float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) or 1)
        rows = generator.lognormal(0, 1, values.shape[:1] + (1,) * (values.ndim - 1))
        delta = size * rows * generator.standard_t(3, values.shape)
        tuned[name] = np.asarray(values + delta, values.dtype)
    return tuned


def typed(tensors: Mapping[str, Values], code: str) -> dict[str, tuple[str, Values]]:
    """Every tensor with one dtype code, as `write_checkpoint` wants it."""
    return {name: (code, values) for name, values in tensors.items()}


def write_family(
    folder: Path,
    experts: int = 3,
    dtype: str = "BF16",
    seed: int = 0,
    shards: int = 1,
    scale: float = 0.02,
    layers: int = 2,
    hidden: int = 8,
    vocab: int = 32,
    tied: bool = False,
) -> Family:
    """A tiny Llama in `folder/base` and fine-tunes of it in `folder/expert1`, …, with a few sidecar files each."""
    weights = tiny_llama(seed, layers=layers, hidden=hidden, vocab=vocab, tied=tied)
    config = llama_config(layers=layers, hidden=hidden, vocab=vocab, tied=tied, dtype=dtype)
    members = {"base": weights}
    for number in range(1, experts + 1):
        members[f"expert{number}"] = fine_tune(weights, 1000 * seed + number, scale)
    for name, tensors in members.items():
        write_checkpoint(folder / name, typed(tensors, dtype), config, shards)
        (folder / name / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}\n')
        (folder / name / "tokenizer_config.json").write_text('{"model_max_length": 64}\n')
    return Family(folder / "base", tuple(folder / f"expert{number}" for number in range(1, experts + 1)))
