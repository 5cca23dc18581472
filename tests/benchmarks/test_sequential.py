"""Plain reading and writing, the yardstick."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.measure import measure
from benchmarks.pagecache import make_cold, resident_bytes
from benchmarks.rounds import PROJECT
from benchmarks.sequential import read, write

WAYS = pytest.mark.parametrize("way", ["buffered", "direct"])


@WAYS
def test_writes_so_many_bytes(tmp_path: Path, way: str) -> None:
    """The file has the size asked for, and is not all the same byte."""
    write(str(tmp_path / "out"), 9_000_001, way == "direct")
    written = (tmp_path / "out").read_bytes()
    assert len(written) == 9_000_001
    assert len(set(written[:1000])) > 100
    assert len(set(written[-1000:])) > 100


@WAYS
def test_reading_past_the_end_is_an_error(tmp_path: Path, way: str) -> None:
    """A file shorter than what is to be read is an error, not a shorter reading."""
    path = tmp_path / "short"
    path.write_bytes(b"12345")
    with pytest.raises(EOFError, match="short: 2 bytes short of the 7"):
        read(str(path), 7, way == "direct")


@WAYS
def test_reads_no_more_than_asked(tmp_path: Path, way: str) -> None:
    """As a program, it asks for the bytes it was told to, in the order of its words, and says how long that took."""
    path = tmp_path / "file"
    path.write_bytes(bytes((20 << 20) + 17))
    program = [sys.executable, "-m", "benchmarks.sequential", way]
    idle = measure(program, PROJECT).asked_read
    part = measure([*program, "read", str(path), str(1 << 20)], PROJECT).asked_read
    whole = measure([*program, "read", str(path), "-1", "write", str(tmp_path / "out"), "5"], PROJECT)
    assert 1 << 20 <= part - idle < 2 << 20
    assert 20 << 20 <= whole.asked_read - idle < 21 << 20
    assert (tmp_path / "out").stat().st_size == 5
    spent = json.loads(whole.stdout)
    assert spent.keys() == {"read", "write"}
    assert 0 < spent["read"] + spent["write"] < whole.wall


@WAYS
def test_fetches_no_more_than_asked(tmp_path: Path, way: str) -> None:
    """Of a cold file, what lies beyond the bytes asked for stays on the disk: nothing is read ahead of the end."""
    path = tmp_path / "file"
    write(str(path), 40 << 20)
    if make_cold([path]):
        pytest.skip("the temporary folder is in memory")
    found = measure([sys.executable, "-m", "benchmarks.sequential", way, "read", str(path), str(8 << 20)], PROJECT)
    assert 8 << 20 <= found.disk_read < 10 << 20
    kept = resident_bytes(path)
    assert kept == 0 if way == "direct" else 8 << 20 <= kept < 9 << 20


def test_direct_writing_leaves_the_page_cache_alone(tmp_path: Path) -> None:
    """Written directly, only the end that is no whole page goes through the cache."""
    write(str(tmp_path / "probe"), 1 << 20)
    if make_cold([tmp_path / "probe"]):
        pytest.skip("the temporary folder is in memory")
    write(str(tmp_path / "out"), (8 << 20) + 17, direct=True)
    assert resident_bytes(tmp_path / "out") < 2 << 20
