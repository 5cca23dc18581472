"""A dictionary keeps the store's contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mergepipe.store.contract import ByteStore
from mergepipe.store.memory import MemoryStore
from mergepipe.testing.stores import StoreContract, read


class TestMemoryStore(StoreContract):
    def make(self, folder: Path, files: Mapping[str, bytes]) -> ByteStore:
        return MemoryStore(files)


def test_a_store_does_not_change_with_the_dictionary_it_was_made_from() -> None:
    """Read-only: files added or removed later do not show."""
    files = {"a": b"1"}
    store = MemoryStore(files)
    files["b"] = b"2"
    del files["a"]
    assert store.keys() == ("a",)
    assert read(store, "a", 0, 1) == b"1"
