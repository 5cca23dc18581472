"""The list of commands says what the commands are, and costs no more than itself."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from mergepipe.cli.commands import COMMANDS, Entry


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`mergepipe` with these words, in a process of its own, plain text at 200 columns."""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "mergepipe", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("entry", COMMANDS, ids=[each.name for each in COMMANDS])
def test_a_command_is_what_the_list_says(entry: Entry) -> None:
    """Its function has its name, and a docstring that begins with the summary shown in the list."""
    function = entry.load()
    assert function.__name__ == entry.name
    assert (inspect.getdoc(function) or "").splitlines()[0] == entry.summary


def test_help_lists_every_command_with_its_summary() -> None:
    """`mergepipe --help` ends with 0 and names all."""
    done = run("--help")
    assert done.returncode == 0
    assert [each.name for each in COMMANDS if each.summary not in done.stdout] == []


def test_help_imports_no_room_that_computes() -> None:
    """Neither arrays nor recipes are loaded to show the list of commands."""
    program = """
import sys
from mergepipe.cli.main import app
sys.argv = ["mergepipe", "--help"]
try:
    app()
except SystemExit as stop:
    assert not stop.code
print(sorted({"numpy", "yaml", "msgspec", "mergepipe.api"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("entry", COMMANDS, ids=[each.name for each in COMMANDS])
def test_help_of_a_command_shows_its_options(entry: Entry) -> None:
    """`mergepipe COMMAND --help` is the real command's."""
    done = run(entry.name, "--help")
    assert done.returncode == 0
    assert f"mergepipe {entry.name}" in done.stdout
    assert "--json" in done.stdout or entry.name == "explain"


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    """Wrong usage ends with 2 and a suggestion, on stderr."""
    done = run("mrge", "x.yml", "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "merge" in done.stderr
    assert "mrge" in done.stderr


def test_version_is_the_packages() -> None:
    """`--version` prints one line."""
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("mergepipe ")
