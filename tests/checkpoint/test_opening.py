"""checkpoint/opening.py: which files make a model, and what is said when they contradict each other."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.errors import FormatError, MergePipeError, SourceError, UnsupportedInput
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import (
    llama_config,
    read_tensors,
    safetensors_bytes,
    tiny_llama,
    typed,
    write_checkpoint,
)

INDEX = "model.safetensors.index.json"


def opened(folder: Path) -> Checkpoint:
    """The directory, opened with a meter of its own."""
    return open_checkpoint(str(folder), Meter())


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A tiny Llama in three shards with an index."""
    return write_checkpoint(tmp_path, typed(tiny_llama(0), "BF16"), llama_config(), shards=3)


def edit_index(folder: Path, changes: dict[str, str | None]) -> None:
    """Map tensors elsewhere, or (None) no longer list them."""
    index = json.loads((folder / INDEX).read_text())
    for name, shard in changes.items():
        if shard is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = shard
    (folder / INDEX).write_text(json.dumps(index))


def refused(folder: Path, kind: type[MergePipeError], message: str) -> None:
    """Opening fails with exactly this kind of error, which names the directory."""
    with pytest.raises(kind, match=message) as caught:
        opened(folder)
    assert type(caught.value) is kind
    assert caught.value.exit_code == 3
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_located_where_their_bytes_are(tmp_path: Path, shards: int) -> None:
    """Every tensor's extent holds its bytes; order is file, then offset; the config is there."""
    folder = write_checkpoint(tmp_path, typed(tiny_llama(0), "BF16"), llama_config(), shards=shards)
    checkpoint = opened(folder)
    expected = read_tensors(folder)
    assert checkpoint.tensors.keys() == expected.keys()
    for name, (code, raw, shape) in expected.items():
        tensor = checkpoint.tensors[name]
        assert (tensor.dtype, tensor.shape) == (code, shape)
        content = (folder / tensor.extent.key).read_bytes()
        assert content[tensor.extent.start : tensor.extent.stop] == raw
    places = [(tensor.extent.key, tensor.extent.start) for tensor in checkpoint.tensors.values()]
    assert places == sorted(places)
    assert checkpoint.config == llama_config()
    assert checkpoint.notes == ()
    assert [file.version.size for file in checkpoint.files] == [
        (folder / file.key).stat().st_size for file in checkpoint.files
    ]


def test_a_checkpoint_is_a_value(sharded: Path) -> None:
    """It pickles, equals itself opened again, and its digest follows the headers."""
    checkpoint = opened(sharded)
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint == opened(sharded)
    other = write_checkpoint(sharded.parent / "other", typed(tiny_llama(0), "F16"), llama_config(), shards=3)
    assert opened(other).header_digest != checkpoint.header_digest


def test_only_header_bytes_are_read(sharded: Path) -> None:
    """Index, config and headers are charged to HEADER, to the byte; nothing is charged elsewhere."""
    meter = Meter()
    checkpoint = open_checkpoint(str(sharded), meter)
    files = sum(path.stat().st_size for path in sharded.iterdir())
    spent = {purpose: count for purpose, count in meter.spent().bytes.items() if count}
    assert spent == {Purpose.HEADER: files - checkpoint.payload_bytes}


def test_no_handle_stays_open(sharded: Path) -> None:
    """Opening leaves no descriptor behind, successful or not."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - /proc/self/fd is counted, not walked
    opened(sharded)
    (sharded / "model-00002-of-00003.safetensors").write_bytes(b"short")
    with pytest.raises(FormatError):
        opened(sharded)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_links_as_in_the_hub_cache_are_followed(sharded: Path) -> None:
    """A directory of links to blobs is a model like any other."""
    linked = sharded.parent / (sharded.name + "-linked")
    linked.mkdir()
    for path in sharded.iterdir():
        (linked / path.name).symlink_to(path)
    assert opened(linked).tensors == opened(sharded).tensors


def test_the_index_wins_over_stray_files(sharded: Path) -> None:
    """Weight files that the index does not name are left alone and noted, whatever they are called."""
    stray = safetensors_bytes([("other", "F32", (1,), bytes(4))])
    (sharded / "model.safetensors").write_bytes(stray)
    (sharded / "consolidated.safetensors").write_bytes(stray)
    (sharded / "pytorch_model.bin").write_bytes(b"")
    (sharded / "training_args.bin").write_bytes(b"")
    (sharded / "adapter_model.safetensors").write_bytes(stray)
    (sharded / "2_Dense").mkdir()
    (sharded / "2_Dense" / "model.safetensors").write_bytes(stray)
    checkpoint = opened(sharded)
    assert "other" not in checkpoint.tensors
    noted = " ".join(checkpoint.notes)
    for name in ("model.safetensors is", "consolidated", "pytorch_model.bin", "adapter_model", "2_Dense/model"):
        assert name in noted
    assert "training_args" not in noted


def test_an_index_of_another_name_counts_if_it_is_the_only_one(sharded: Path) -> None:
    """`*.safetensors.index.json` is an index too; two of them are a contradiction."""
    (sharded / INDEX).rename(sharded / "diffusion.safetensors.index.json")
    assert len(opened(sharded).files) == 3
    (sharded / "second.safetensors.index.json").write_text("{}")
    refused(sharded, FormatError, "several indexes")


def test_one_file_of_any_name_is_a_model(tmp_path: Path) -> None:
    """`model.safetensors` wins; without it a single file is taken; several without an index are refused."""
    write_checkpoint(tmp_path, {"w": ("F32", np.zeros(2))}, {})
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert [file.key for file in opened(tmp_path).files] == ["weights.safetensors"]
    (tmp_path / "more.safetensors").write_bytes(safetensors_bytes([]))
    refused(tmp_path, FormatError, "2 safetensors files .*no index")
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes([("m", "F32", (1,), bytes(4))]))
    checkpoint = opened(tmp_path)
    assert list(checkpoint.tensors) == ["m"]
    assert len(checkpoint.notes) == 2


def test_a_shard_missing_on_disk_is_named_with_its_share(sharded: Path) -> None:
    """The message says which file is missing and how many tensors it holds."""
    (sharded / "model-00002-of-00003.safetensors").unlink()
    refused(sharded, FormatError, r"model-00002-of-00003.safetensors: named by .* for 7 of 21 tensors")


def test_a_tensor_the_shard_lacks_is_named(sharded: Path) -> None:
    """The index maps a name to a shard that does not hold it, nor does any other."""
    edit_index(sharded, {"phantom.weight": "model-00001-of-00003.safetensors"})
    refused(sharded, FormatError, "maps tensor 'phantom.weight' to model-00001.*header does not hold it")


def test_a_tensor_in_another_shard_is_named_with_both(sharded: Path) -> None:
    """The index maps a name to one shard, another holds it."""
    edit_index(sharded, {"model.norm.weight": "model-00001-of-00003.safetensors"})
    refused(sharded, FormatError, "'model.norm.weight' to model-00001.*but it is in model-00003")


def test_a_tensor_the_index_does_not_list_is_named(sharded: Path) -> None:
    """A tensor in a shard would not be dropped silently."""
    edit_index(sharded, {"model.norm.weight": None})
    refused(sharded, FormatError, "model-00003-of-00003.safetensors holds tensor 'model.norm.weight'.*not list")


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    """Both shards are named."""
    path = sharded / "model-00002-of-00003.safetensors"
    held = [(name, code, shape, raw) for name, (code, raw, shape) in read_tensors(sharded).items()]
    path.write_bytes(safetensors_bytes([each for each in held if each[0] == "model.embed_tokens.weight"]))
    refused(sharded, FormatError, "'model.embed_tokens.weight' is in two shards, model-00001.* and model-00002")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"weight_map":{"w":"a.safetensors","w":"b.safetensors"}}', "'w' occurs twice"),
        ('{"weight_map":{"w":"../a.safetensors"}}', "maps tensor 'w' to '../a.safetensors'"),
        ('{"weight_map":{"w":"/etc/a.safetensors"}}', "plain path inside"),
        ('{"weight_map":{"w":"..\\\\a.safetensors"}}', "plain path inside"),
        ('{"weight_map":{"w":"./model.safetensors"}}', "plain path inside"),
        ('{"weight_map":{"w":7}}', "maps tensor 'w' to 7"),
        ('{"weight_map":{}}', "no weight_map"),
        ('{"weight_map":[]}', "no weight_map"),
        ("[]", "holds a JSON list"),
        ("{", "not valid JSON"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Duplicates, paths out of the directory and everything that is not names to names."""
    write_checkpoint(tmp_path, {"w": ("F32", np.zeros(2))})
    (tmp_path / INDEX).write_text(text)
    refused(tmp_path, FormatError, message)


def test_foreign_shards_in_an_index_are_refused(tmp_path: Path) -> None:
    """An index may not lead to pickles."""
    write_checkpoint(tmp_path, {"w": ("F32", np.zeros(2))})
    (tmp_path / "w.bin").write_bytes(b"\x80")
    (tmp_path / INDEX).write_text('{"weight_map":{"w":"w.bin"}}')
    refused(tmp_path, UnsupportedInput, "only .safetensors shards")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model-Q4_K_M.gguf", "tf_model.h5"])
def test_other_formats_are_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    """A model in another format is an unsupported input, and the way out is said."""
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "optimizer.pt").write_bytes(b"")
    refused(tmp_path, UnsupportedInput, f"the weights are in {name};.*save it as safetensors")


def test_an_adapter_alone_is_refused_as_one(tmp_path: Path) -> None:
    """LoRA directories say that LoRA is what is missing."""
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors_bytes([]))
    refused(tmp_path, UnsupportedInput, "holds an adapter only.*LoRA")


def test_no_model_at_all(tmp_path: Path) -> None:
    """A directory without weights, and a path that is no directory, are told apart."""
    refused(tmp_path, SourceError, "no weight files")
    (tmp_path / "training_args.bin").write_bytes(b"")
    refused(tmp_path, SourceError, "no weight files")
    refused(tmp_path / "nowhere", SourceError, "no such directory")


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "holds a JSON list"), ("{'a': 1}", "not valid JSON"), ("", "not valid JSON")]
)
def test_a_malformed_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """config.json is an object or an error."""
    write_checkpoint(tmp_path, {"w": ("F32", np.zeros(2))})
    (tmp_path / "config.json").write_text(text)
    refused(tmp_path, FormatError, f"config.json: {message}")


def test_config_may_be_missing_or_hold_infinity(tmp_path: Path) -> None:
    """No config is noted and empty; Python's `Infinity`, which real configs hold, is read."""
    write_checkpoint(tmp_path, {"w": ("F32", np.zeros(2))})
    checkpoint = opened(tmp_path)
    assert checkpoint.config == {}
    assert any("config.json is missing" in note for note in checkpoint.notes)
    (tmp_path / "config.json").write_text('{"time_step_limit": [0.0, Infinity]}')
    config: Any = opened(tmp_path).config
    assert config["time_step_limit"][1] == float("inf")


def test_a_truncated_shard_is_named(sharded: Path) -> None:
    """The file that ends early is the one in the message."""
    path = sharded / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(sharded, FormatError, "model-00003-of-00003.safetensors: file is .* truncated")
