"""The command line: commands, exit codes, and errors as one line on stderr."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated, Final

import typer

import mergepipe
from mergepipe.cli.commands import LazyGroup, register
from mergepipe.errors import MergePipeError

# New objects less freed ones, of those that may be in cycles.
_GARBAGE_AFTER: Final = 100_000

app = typer.Typer(
    name="mergepipe",
    cls=LazyGroup,
    help="Merge LLM checkpoints under a budget of bytes read, and prove what went into the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"mergepipe {mergepipe.__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Merge LLM checkpoints under a budget of bytes read, and prove what went into the result."""
    del version


def main() -> None:
    """Run one command. Exit codes: 0 done, 2 usage or config, 3 inputs refused, 4 budget not met, 1 else."""
    # numpy's library of linear algebra, of which nothing here is used, would start a thread a core, each to spin first.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Modules and plans are many small objects that live to the end: looking among them for garbage, as often as is
    # usual, took longer than some plans.
    gc.set_threshold(_GARBAGE_AFTER)
    try:
        app()
    except MergePipeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of stdout has gone (`| head`): not an error, and nothing more can be said there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    finally:
        gc.freeze()  # The process ends, and all memory with it: nothing is worth looking for.


if __name__ == "__main__":
    main()
