"""A model directory becomes a `Checkpoint`: which files count, what their headers and the index say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from mergepipe.checkpoint.model import Checkpoint, TensorInfo, WeightFile
from mergepipe.checkpoint.safetensors import parse_header
from mergepipe.checkpoint.strictjson import parse_object, parse_unique_object
from mergepipe.checkpoint.weightfiles import is_adapter_file, is_training_state, is_weight_file
from mergepipe.errors import FormatError, SourceError, UnsupportedInput
from mergepipe.store.contract import ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store, resolve

_SINGLE: Final = "model.safetensors"
_INDEX_ENDING: Final = ".safetensors.index.json"
_MAX_JSON: Final = 100_000_000
_NAMES_SHOWN: Final = 3


def open_checkpoint(ref: str, meter: Meter) -> Checkpoint:
    """Read the headers, the index and config.json of the model directory `ref`, charged to HEADER.

    No handle stays open. Raises `SourceError` if there is no model, `UnsupportedInput` if there is one of a
    kind that cannot be merged, `FormatError` if index, headers and files contradict each other.
    """
    url = resolve(ref)
    store = open_store(url, meter, Purpose.HEADER, ref)
    try:
        keys = store.keys()
        here = [key for key in keys if "/" not in key]
        index = _index_key(here, ref)
        if index is None:
            shards: tuple[str, ...] = (_only_file(here, ref),)
            files, held = _read_headers(store, shards, ref)
        else:
            weight_map = _weight_map(store, index, ref)
            shards = _indexed_shards(weight_map, keys, ref, index)
            files, held = _read_headers(store, shards, ref)
            _check_against_index(weight_map, held, ref)
        notes = _notes(keys, shards, index)
        config = _read_config(store, ref) if "config.json" in here else {}
    finally:
        store.close()
    tensors = {tensor.name: tensor for infos in held.values() for tensor in infos}
    return Checkpoint(ref, url, tensors, files, config, notes)


def _index_key(here: Sequence[str], ref: str) -> str | None:
    indexes = [key for key in here if key.endswith(_INDEX_ENDING)]
    if _SINGLE + ".index.json" in indexes:
        return _SINGLE + ".index.json"
    if len(indexes) > 1:
        raise FormatError(
            f"{ref}: several indexes ({_listed(indexes)}) and none is {_SINGLE}.index.json; "
            "which one is meant cannot be known: keep one"
        )
    return indexes[0] if indexes else None


def _only_file(here: Sequence[str], ref: str) -> str:
    """The one weight file of a directory without an index."""
    candidates = [
        key for key in here if key.endswith(".safetensors") and not is_adapter_file(key) and not is_training_state(key)
    ]
    if _SINGLE in candidates:
        return _SINGLE
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise FormatError(
            f"{ref}: {len(candidates)} safetensors files ({_listed(candidates)}), no {_SINGLE} and no index that "
            f"says which belong together: fetch {_SINGLE}.index.json too, or keep one file"
        )
    adapters = [key for key in here if is_adapter_file(key)]
    foreign = [key for key in here if is_weight_file(key) and not is_training_state(key) and key not in adapters]
    if foreign:
        raise UnsupportedInput(
            f"{ref}: the weights are in {_listed(foreign)}; only safetensors can be merged: "
            "load the model with the library that wrote it and save it as safetensors first"
        )
    if adapters:
        raise UnsupportedInput(
            f"{ref}: holds an adapter only ({_listed(adapters)}); LoRA adapters are not supported yet: "
            "merge it into its base model and save the result first"
        )
    raise SourceError(
        f"{ref}: no weight files; {_SINGLE}, or shards with {_SINGLE}.index.json, are expected in a model directory"
    )


def _weight_map(store: ByteStore, index: str, ref: str) -> dict[str, str]:
    """Tensor name → shard, as the index says."""
    what = f"{ref}/{index}"
    weight_map = parse_unique_object(_read_json(store, index, ref), what).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{what}: has no weight_map; an object of tensor names and shard files is expected")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise FormatError(f"{what}: maps tensor {name!r} to {shard!r:.80}; the name of a shard file is expected")
        path = PurePosixPath(shard)
        if not shard or path.is_absolute() or ".." in path.parts or "\\" in shard or str(path) != shard:
            raise FormatError(
                f"{what}: maps tensor {name!r} to {shard!r}; a plain path inside the model directory is expected"
            )
    return weight_map


def _indexed_shards(weight_map: Mapping[str, str], keys: Sequence[str], ref: str, index: str) -> tuple[str, ...]:
    """The shards that the index names, sorted, all of them on disk."""
    counts = Counter(weight_map.values())
    present = set(keys)
    for shard in sorted(counts):
        if shard not in present:
            raise FormatError(
                f"{ref}/{shard}: named by {index} for {counts[shard]:,} of {len(weight_map):,} tensors, "
                "but there is no such file; the download is incomplete: fetch it again"
            )
        if not shard.endswith(".safetensors"):
            raise UnsupportedInput(f"{ref}/{shard}: named by {index}, but only .safetensors shards can be merged")
    return tuple(sorted(counts))


def _read_headers(
    store: ByteStore, shards: Sequence[str], ref: str
) -> tuple[tuple[WeightFile, ...], dict[str, tuple[TensorInfo, ...]]]:
    files: list[WeightFile] = []
    held: dict[str, tuple[TensorInfo, ...]] = {}
    shard_of: dict[str, str] = {}
    for shard in shards:
        version = store.version(shard)  # before the header: a file replaced meanwhile then shows
        held[shard], digest = parse_header(store, shard, ref)
        files.append(WeightFile(shard, version, digest))
        for tensor in held[shard]:
            if tensor.name in shard_of:
                raise FormatError(
                    f"{ref}: tensor {tensor.name!r} is in two shards, {shard_of[tensor.name]} and {shard}; "
                    "which one is meant cannot be known"
                )
            shard_of[tensor.name] = shard
    return tuple(files), held


def _check_against_index(weight_map: Mapping[str, str], held: Mapping[str, tuple[TensorInfo, ...]], ref: str) -> None:
    """Index and headers name the same tensors in the same shards."""
    shard_of = {tensor.name: shard for shard, infos in held.items() for tensor in infos}
    for name, shard in weight_map.items():
        if name not in shard_of:
            raise FormatError(
                f"{ref}: the index maps tensor {name!r} to {shard}, but that shard's header does not hold it; "
                "index and shards are of different downloads or versions"
            )
        if shard_of[name] != shard:
            raise FormatError(
                f"{ref}: the index maps tensor {name!r} to {shard}, but it is in {shard_of[name]}; "
                "index and shards are of different downloads or versions"
            )
    for name, shard in shard_of.items():
        if name not in weight_map:
            raise FormatError(
                f"{ref}: {shard} holds tensor {name!r}, which the index does not list; "
                "it would be dropped silently: add it to the index, or remove it from the shard"
            )


def _notes(keys: Sequence[str], shards: Sequence[str], index: str | None) -> tuple[str, ...]:
    """What lies in the directory, looks like weights, and is left alone; and what is missing."""
    notes = []
    ours = [key for key in keys if key not in shards and not is_training_state(key)]
    for key in ours:
        if "/" in key:
            continue
        if is_adapter_file(key):
            notes.append(f"{key} is ignored: an adapter beside full weights")
        elif is_weight_file(key):
            reason = f"{index} does not name it" if index else f"{shards[0]} holds the weights"
            notes.append(f"{key} is ignored: {reason}")
        elif key.endswith(_INDEX_ENDING) and key != index:
            notes.append(f"{key} is ignored: {index} is the index")
    deeper = [key for key in ours if "/" in key and is_weight_file(key)]
    if deeper:
        notes.append(f"weight files in subfolders are ignored: {_listed(deeper)}")
    if "config.json" not in keys:
        notes.append("config.json is missing: architecture, heads and tied weights are unknown")
    return tuple(notes)


def _read_config(store: ByteStore, ref: str) -> Mapping[str, Any]:
    return parse_object(_read_json(store, "config.json", ref), f"{ref}/config.json")


def _read_json(store: ByteStore, key: str, ref: str) -> bytes:
    size = store.version(key).size
    if size > _MAX_JSON:
        raise FormatError(f"{ref}/{key}: is {size:,} bytes of JSON, at most {_MAX_JSON:,} are accepted")
    out = bytearray(size)
    store.read_into(key, 0, memoryview(out))
    return bytes(out)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
