"""sidecar/files.py: what travels with a merged model, and what must not."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.errors import OutputError, SourceError
from mergepipe.sidecar.files import copy_sidecars, sidecar_files
from mergepipe.store.contract import ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store
from mergepipe.testing.checkpoints import llama_config, tiny_llama, typed, write_checkpoint

KEPT = [
    "LICENSE",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "modeling_new.py",
    "preprocessor_config.json",
    "special/deeper/README.md",
    "special/vocab.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
]
LEFT = [
    ".gitattributes",
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "checkpoint-20/config.json",
    "checkpoint-20/trainer_state.json",
    "events.out.tfevents.17",
    "flax_model.msgpack",
    "global_step20/notes.txt",
    "latest",
    "mergekit_config.yml",
    "mergepipe_manifest.json",
    "model.fp16.safetensors",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "optimizer.pt",
    "original/consolidated.00.pth",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "rng_state_0.pth",
    "scheduler.pt",
    "tf_model.h5",
    "trainer_state.json",
    "training_args.bin",
    "weights.gguf",
    "zero_to_fp32.py",
]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model directory with every kind of file beside the weights."""
    folder = write_checkpoint(tmp_path / "base", typed(tiny_llama(0), "BF16"), llama_config(), shards=2)
    for number, key in enumerate(KEPT + LEFT):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.encode() * number)
    return folder


def opened(folder: Path, meter: Meter) -> ByteStore:
    """A store of the directory for sidecars."""
    return open_store(str(folder), meter, Purpose.SIDECAR, str(folder))


def test_everything_but_weights_and_records_of_others_is_copied(base: Path, tmp_path: Path) -> None:
    """Tokenizers of every kind, templates, code, subfolders: yes. Weights, adapters, training state, cards: no."""
    meter = Meter()
    store = opened(base, meter)
    staging = tmp_path / "staging"
    listed = sidecar_files(store, open_checkpoint(str(base), Meter()))
    copied = copy_sidecars(store, open_checkpoint(str(base), Meter()), staging)
    store.close()
    assert list(copied) == KEPT == [file.key for file in listed]
    found = sorted(path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file())
    assert found == KEPT
    for file in listed:
        assert (staging / file.key).read_bytes() == (base / file.key).read_bytes()
        assert (staging / file.key).stat().st_size == file.size
    assert meter.spent().bytes[Purpose.SIDECAR] == sum(file.size for file in listed)


def test_large_files_and_links_are_copied_whole_and_plain(base: Path, tmp_path: Path) -> None:
    """Files beyond the buffer arrive whole; links become files; read-only or executable bits are not carried over."""
    content = os.urandom((3 << 20) + 17)
    (tmp_path / "blob").write_bytes(content)
    (tmp_path / "blob").chmod(0o555)
    (base / "tokenizer.json").unlink()
    (base / "tokenizer.json").symlink_to(tmp_path / "blob")
    store = opened(base, Meter())
    copy_sidecars(store, open_checkpoint(str(base), Meter()), tmp_path / "staging")
    store.close()
    copied = tmp_path / "staging" / "tokenizer.json"
    assert copied.read_bytes() == content
    assert not copied.is_symlink()
    mode = stat.S_IMODE(copied.stat().st_mode)
    assert mode & stat.S_IWUSR
    assert not mode & stat.S_IXUSR


def test_a_weight_file_of_any_name_is_not_a_sidecar(tmp_path: Path) -> None:
    """The files that hold the base's weights are known from the checkpoint, not only from their names."""
    folder = write_checkpoint(tmp_path / "base", typed(tiny_llama(0), "BF16"), llama_config())
    store = opened(folder, Meter())
    assert sidecar_files(store, open_checkpoint(str(folder), Meter())) == ()
    store.close()


def test_a_failed_copy_names_the_file(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space for a sidecar is an output error with the file's path."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    store = opened(base, Meter())
    with pytest.raises(OutputError, match=r"staging/LICENSE: cannot be written: .*free space"):
        copy_sidecars(store, open_checkpoint(str(base), Meter()), tmp_path / "staging")
    store.close()


def test_a_source_that_vanishes_is_a_source_error(base: Path, tmp_path: Path) -> None:
    """Files read from the base that are gone are the input's fault, not the output's."""
    store = opened(base, Meter())
    checkpoint = open_checkpoint(str(base), Meter())

    class Vanishing:
        version, keys, close = store.version, store.keys, store.close

        def read_into(self, key: str, start: int, out: memoryview) -> None:
            (base / key).unlink()
            store.read_into(key, start, out)

    with pytest.raises(SourceError, match="cannot be opened"):
        copy_sidecars(Vanishing(), checkpoint, tmp_path / "staging")
    store.close()
