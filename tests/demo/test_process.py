"""Modules run as processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from mergepipe.demo.process import lines_of
from mergepipe.errors import MergePipeError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `said`, which other processes find."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "said.py"


def test_lines_come_back(module: Path) -> None:
    """Each line of stdout comes without its end; the words reach the module."""
    module.write_text("import sys\nprint('one')\nprint(*sys.argv[1:])\n")
    assert list(lines_of("said", ["two", "three four"])) == ["one", "two three four"]


def test_a_failure_says_what_was_said(module: Path) -> None:
    """A module that fails is an error with its name, exit code and stderr, after the lines it printed."""
    module.write_text("import sys\nprint('one')\nsys.stderr.write('the reason')\nsys.exit(3)\n")
    lines = lines_of("said", [])
    assert next(lines) == "one"
    with pytest.raises(MergePipeError, match=r"python -m said ended with exit code 3: the reason"):
        next(lines)


def test_the_current_directory_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that happens to lie where the command runs is never taken for a module."""
    (tmp_path / "said.py").write_text("print('here')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(MergePipeError, match="No module named said"):
        list(lines_of("said", []))
