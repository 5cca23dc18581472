"""The only door: every store handed out is metered."""

from __future__ import annotations

from pathlib import Path

import pytest

from mergepipe.errors import BudgetExceeded, SourceError
from mergepipe.store.contract import Access, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store, resolve
from mergepipe.testing.stores import read


@pytest.mark.parametrize("access", list(Access))
def test_what_is_opened_is_metered(tmp_path: Path, access: Access) -> None:
    """Reads count for the purpose and source named at the door, and its cap holds."""
    (tmp_path / "w").write_bytes(b"abcdef")
    meter = Meter({Purpose.EXPERT: 4})
    store = open_store(str(tmp_path), meter, Purpose.EXPERT, "0:a", access)
    assert read(store, "w", 2, 4) == b"cdef"
    with pytest.raises(BudgetExceeded):
        read(store, "w", 0, 1)
    store.close()
    assert meter.spent().by_source == {"0:a": 4}


def test_directories_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, `~`, file:// and links all come out as the one absolute directory."""
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "link").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in ("model", "./model", "~/model", "link", f"file://{model}", str(model)):
        assert resolve(url) == str(model.resolve())


@pytest.mark.parametrize(
    ("url", "words"),
    [("nowhere", "no such directory"), ("s3://bucket/model", "s3://"), ("hf://org/model", "hf://"),
     ("x" * 5000, "File name too long")],
)  # fmt: skip
def test_what_cannot_be_opened_is_said(url: str, words: str) -> None:
    """A missing directory or an unknown scheme: which, and what is possible instead."""
    with pytest.raises(SourceError, match=words):
        resolve(url)
    with pytest.raises(SourceError, match=words):
        open_store(url, Meter(), Purpose.BASE, "base")


def test_a_file_is_no_model_directory(tmp_path: Path) -> None:
    """A path to the weight file itself is refused."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(SourceError, match="models are local directories"):
        resolve(str(tmp_path / "model.safetensors"))
