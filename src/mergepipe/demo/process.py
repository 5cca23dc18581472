"""A module of the demo run as a process of its own: torch stays out of the process that merges."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final

from mergepipe.errors import MergePipeError

_SHOWN: Final = 2000  # characters of stderr in an error's message


def lines_of(module: str, words: Sequence[str]) -> Iterator[str]:
    """Run `python -m module words…` with this interpreter; the lines of its stdout, as they come.

    Raises `MergePipeError` with the end of its stderr if it fails.
    """
    # -P: a torch.py in the current directory is not torch.
    command = [sys.executable, "-P", "-m", module, *words]
    # Threads that spin while they wait for each other stand still when the cores are busy with something else.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        ) as process,
    ):
        for line in process.stdout or ():
            yield line.rstrip("\n")
        code = process.wait()
        if code != 0:
            said.seek(0)
            tail = said.read().decode(errors="replace").strip()[-_SHOWN:]
            raise MergePipeError(f"python -m {module} ended with exit code {code}: {tail or 'it said nothing'}")
