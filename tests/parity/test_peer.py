"""Without the peer's environment nothing is compared: that must not look like success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.peer import PROJECT, peer_python

ONE_TEST = "tests/parity/test_parity.py::test_method[linear-two-float32]"


def run_without_peer(folder: Path, ci: bool) -> subprocess.CompletedProcess[str]:
    """One parity test in a fresh pytest whose peer is not there."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI", "COV_"))}
    environment |= {"MERGEPIPE_PEER": str(folder / "none"), **({"CI": "true"} if ci else {})}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", ONE_TEST],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("ci", [True, False])
def test_a_missing_peer_fails_in_ci_and_is_skipped_elsewhere(tmp_path: Path, ci: bool) -> None:
    """Both say how to make it."""
    ended = run_without_peer(tmp_path, ci)
    assert "./dev peer" in ended.stdout
    assert ended.returncode == (1 if ci else 0)
    assert ("1 error" in ended.stdout) if ci else ("1 skipped" in ended.stdout)


def test_an_unfinished_environment_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer counts as there only once its set-up has run to the end."""
    monkeypatch.setenv("MERGEPIPE_PEER", str(tmp_path))
    assert peer_python() is None
    (tmp_path / "peer-stamp").write_text("")
    assert peer_python() == tmp_path / "bin" / "python"
