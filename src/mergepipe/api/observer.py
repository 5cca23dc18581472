"""Who is told what a run is doing; being told changes nothing."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Told what is going on; changes nothing. `progress` counts bytes of a named stage."""

    def note(self, text: str) -> None: ...

    def progress(self, stage: str, done: int, total: int) -> None: ...


class Silent:
    """An observer that keeps nothing."""

    def note(self, text: str) -> None:
        """Not kept."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Not kept."""


SILENT = Silent()
