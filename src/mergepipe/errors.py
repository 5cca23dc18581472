"""Every error MergePipe raises on purpose, with its exit code.

Exit codes: 2 wrong usage or config, 3 inputs refused, 4 the budget cannot be met, 1 anything else.
A message names the file, tensor or key, what was found, what was expected, and what to do.
"""

from __future__ import annotations


class MergePipeError(Exception):
    """Base of all errors a user can meet; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(MergePipeError):
    """The command line or an API argument cannot be meant as given."""

    exit_code = 2


class RecipeError(UsageError):
    """The recipe (YAML) is wrong: unknown key or method, missing or ill-typed value."""


class MemoryLimitTooSmall(UsageError):
    """The largest indivisible step does not fit the memory limit."""

    def __init__(self, what: str, needed: int, limit: int) -> None:
        self.what, self.needed, self.limit = what, needed, limit
        super().__init__(
            f"{what} needs {needed:,} bytes of buffers, the limit is {limit:,}: raise --memory to at least {needed:,}"
        )


class PublishConflict(UsageError):
    """OUT exists already, is locked by another run, or would overwrite an input."""


class SourceError(MergePipeError):
    """An input file is missing, unreadable, or ended early."""

    exit_code = 3


class FormatError(SourceError):
    """A checkpoint file is not what its format demands."""


class UnsupportedInput(SourceError):
    """An input is of a known kind that cannot be merged (quantised, pickled, ...)."""


class IncompatibleModels(SourceError):
    """Base and experts do not share one coordinate system."""


class NonFiniteError(SourceError):
    """A NaN or an infinity was met in an input or would be written."""


class StaleIndex(SourceError):
    """An index does not describe the bytes that are there now."""


class ManifestMismatch(SourceError):
    """Inputs or outputs are not those the manifest records."""


class BudgetInfeasible(MergePipeError):
    """No plan within the budget exists; known before any expert byte is read."""

    exit_code = 4

    def __init__(self, needed: int, budget: int, what: str) -> None:
        self.needed, self.budget, self.what = needed, budget, what
        super().__init__(
            f"{what} requires {needed:,} expert bytes, the budget is {budget:,}: "
            f"raise --budget to at least {needed:,} bytes"
        )


class BudgetExceeded(MergePipeError):
    """The meter refused a read that would pass the cap; the plan and the run disagree."""

    exit_code = 4

    def __init__(self, needed: int, left: int, what: str) -> None:
        self.needed, self.left, self.what = needed, left, what
        super().__init__(f"refused to read {needed:,} bytes of {what}: {left:,} bytes of the budget are left")


class OutputError(MergePipeError):
    """The output cannot be written: no space, no permission, or the device failed."""
