"""The commands by name. What stands behind one is imported when it is run, so that help comes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: the function of its name in `module`, whose docstring's first line is `summary`."""

    name: str
    module: str
    summary: str

    def load(self) -> Callable[..., None]:
        """The function that takes the command's words; imports what it needs."""
        function: Callable[..., None] = getattr(import_module(self.module), self.name)
        return function


COMMANDS: Final[Sequence[Entry]] = (
    Entry(
        "merge",
        "mergepipe.cli.merge",
        "Merge the models of a recipe into OUT, reading no more of the experts than the budget allows.",
    ),
    Entry(
        "check",
        "mergepipe.cli.inspect",
        "Preflight: alignment, vocabularies, dtypes, sizes. Reads headers and configs only.",
    ),
    Entry("index", "mergepipe.cli.index", "Build or find the index of each (base, expert) pair."),
    Entry(
        "plan",
        "mergepipe.cli.plan",
        "Choose which expert blocks to read under a budget; reads no expert for it but what the index lacks.",
    ),
    Entry(
        "explain",
        "mergepipe.cli.plan",
        "Say what is read from whom, where and why, and what is known of the error.",
    ),
    Entry(
        "replay",
        "mergepipe.cli.merge",
        "Merge again exactly as a manifest records; stops, naming it, if an input has changed.",
    ),
    Entry("verify", "mergepipe.cli.inspect", "Hash every file of a merged model against its manifest."),
    Entry("sweep", "mergepipe.cli.plan", "Bytes and error bounds of one recipe over several budgets."),
    Entry(
        "demo",
        "mergepipe.cli.demo",
        "Train a small family for a moment, merge it at several budgets, and measure what that costs.",
    ),
)


class LazyGroup(TyperGroup):
    """A group whose commands are known by name and summary, and become real when one is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The real command that `args` begin with, its name, and the words left for it."""
        name, command, left = super().resolve_command(ctx, args)
        entry = next((each for each in COMMANDS if each.name == name), None)
        return name, command if entry is None else _real(entry), left


def register(app: typer.Typer) -> None:
    """Give `app`, whose class is `LazyGroup`, the names and summaries of all commands."""
    for entry in COMMANDS:
        app.command(entry.name, help=entry.summary)(_stand_in)


def _stand_in() -> None:
    """Shown in the list of commands, never run."""


def _real(entry: Entry) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(entry.name)(entry.load())
    return get_command(app)
