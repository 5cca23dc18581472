"""Whole processes, measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.measure import CommandFailed, measure

MIB = 1 << 20


def test_counts_what_was_asked(tmp_path: Path) -> None:
    """Bytes asked of the system are counted exactly, above what the interpreter itself reads and writes."""
    source = tmp_path / "source"
    source.write_bytes(bytes(8 * MIB))
    empty = measure([sys.executable, "-c", "pass"])
    copy = f"import pathlib; pathlib.Path('copy').write_bytes(pathlib.Path({str(source)!r}).read_bytes())"
    copied = measure([sys.executable, "-c", copy], cwd=tmp_path)
    assert (tmp_path / "copy").stat().st_size == 8 * MIB
    assert 8 * MIB <= copied.asked_read - empty.asked_read < 9 * MIB
    assert 8 * MIB <= copied.asked_written - empty.asked_written < 9 * MIB


def test_counts_children() -> None:
    """What a child of the command reads is the command's."""
    child = "open('/dev/zero', 'rb', buffering=0).read(4 << 20)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    assert measure([sys.executable, "-c", parent]).asked_read >= 4 * MIB


def test_peak_memory_is_the_commands() -> None:
    """Peak memory is what the command held, not what the process that measures it holds."""
    held = bytearray(512 * MIB)
    held[::4096] = b"x" * len(held[::4096])
    found = measure([sys.executable, "-c", "import time; x = bytearray(100 << 20); time.sleep(0.3)"])
    assert 100 * MIB < found.peak_rss < 300 * MIB
    assert len(held) > found.peak_rss


def test_keeps_stdout() -> None:
    """What the command prints comes back whole."""
    assert measure([sys.executable, "-c", "print('x' * 100_000)"]).stdout == "x" * 100_000 + "\n"


def test_failure_says_why() -> None:
    """A command that fails is an error with its exit code and what it said."""
    with pytest.raises(CommandFailed, match=r"ended with 3: the reason"):
        measure([sys.executable, "-c", "import sys; sys.stderr.write('the reason'); sys.exit(3)"])
