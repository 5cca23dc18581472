"""What is said of the machine."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.machine import described, disk, machine


def test_says_what_figures_depend_on(tmp_path: Path) -> None:
    """Processor, cores, memory, disk, kernel and versions, as plain values, and no path or name of the machine."""
    found = machine(tmp_path)
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 1 << 20
    assert found["kernel"] == os.uname().release
    assert found["versions"]["numpy"] == version("numpy")
    assert found["processor"]
    assert str(tmp_path) not in json.dumps(found)
    assert os.uname().nodename not in json.dumps(found).split('"')


def test_the_disk_is_that_of_the_folder() -> None:
    """The file system is the one the folder is on, not the root's."""
    assert disk(Path("/proc"))["file_system"] == "proc"


def test_versions_of_the_peers_environment(tmp_path: Path) -> None:
    """The version of mergekit is asked of its own interpreter."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'print(\"1.2.3\")'\n")
    python.chmod(0o755)
    assert machine(tmp_path, python)["versions"]["mergekit"] == "1.2.3"


def test_one_line(tmp_path: Path) -> None:
    """The description fits a line."""
    line = described(machine(tmp_path))
    assert "\n" not in line
    assert "numpy" in line
