from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mergepipe.errors import SourceError
from mergepipe.publish.rehash import found_record, open_for_verifying, read_whole
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 19) + 3])
def test_record_is_of_the_whole_file(tmp_path: Path, size: int) -> None:
    """Size and digest are right for files below, at and above the buffer's size, and every byte is metered once."""
    data = bytes(number * 31 % 251 for number in range(1000)) * (size // 1000 + 1)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(data[:size])
    meter = Meter()
    store = open_for_verifying(tmp_path, meter)
    try:
        found = found_record(store, "sub/a")
        assert read_whole(store, "sub/a") == data[:size]
    finally:
        store.close()
    assert (found.name, found.size) == ("sub/a", size)
    assert found.sha256 == "sha256:" + hashlib.sha256(data[:size]).hexdigest()
    spent = meter.spent().bytes
    assert spent[Purpose.VERIFY] == 2 * size
    assert sum(spent.values()) == 2 * size


def test_missing_file_is_a_source_error(tmp_path: Path) -> None:
    """What is not there is named."""
    store = open_for_verifying(tmp_path, Meter())
    try:
        with pytest.raises(SourceError, match="none"):
            found_record(store, "none")
    finally:
        store.close()
