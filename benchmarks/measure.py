"""One command measured as a whole process: time, memory, and what it had the system read and write.

    python -m benchmarks.measure COMMAND ARGUMENT...

prints the figures as JSON on stderr. Where they come from:

* wall: from start to exit, process start included; user and system CPU: wait4, with waited-for children.
* peak RSS: wait4's figure. Linux counts in it what the *parent* held when it started the command; where that could
  be what is seen, the largest VmHWM that /proc/PID/status showed every 5 ms stands instead.
* disk reads and writes: read_bytes and write_bytes of /proc/PID/io, taken between exit and reaping and so complete:
  what the process had fetched from and sent towards the block device, its read-ahead and its children included. Pages
  that were in the page cache are not in it.
* asked reads and writes: rchar and wchar of the same file: bytes asked by system calls, wherever they came from.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_SAMPLE_MS: Final = 5
_SHOWN: Final = 2000  # characters of stderr in an error's message


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times in seconds, sizes in bytes. `stdout` is what the command printed."""

    wall: float
    user: float
    system: float
    peak_rss: int
    disk_read: int
    disk_written: int
    asked_read: int
    asked_written: int
    stdout: str

    @property
    def cpu(self) -> float:
        return self.user + self.system


class CommandFailed(Exception):
    """A measured command ended with an exit code other than 0."""


def measure(
    command: Sequence[str], cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Measurement:
    """Run `command` to its end, in our environment or another. What it said goes into `CommandFailed`."""
    inherited = _high_water(os.getpid())
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=environment)
        # Opened now: once the process has ended, only root may open it. It can be read until the process is reaped.
        counters = os.open(f"/proc/{process.pid}/io", os.O_RDONLY)
        try:
            sampled = _wait(process.pid)
            wall = time.perf_counter() - started
            io = _fields(os.pread(counters, 4096, 0).decode())
        finally:
            os.close(counters)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            said = err.read().decode(errors="replace").strip()[-_SHOWN:]
            raise CommandFailed(f"{' '.join(command)}: ended with {process.returncode}: {said}")
        stdout = out.read().decode(errors="replace")
    reaped = usage.ru_maxrss * 1024
    return Measurement(
        wall=wall,
        user=usage.ru_utime,
        system=usage.ru_stime,
        peak_rss=reaped if reaped > inherited else sampled,
        disk_read=io["read_bytes"],
        disk_written=io["write_bytes"],
        asked_read=io["rchar"],
        asked_written=io["wchar"],
        stdout=stdout,
    )


def installed_environment(cache: Path) -> dict[str, str]:
    """Our environment as a program that was installed finds it: its modules are compiled once, and kept in `cache`."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(cache), "HF_HUB_OFFLINE": "1"}


def _wait(pid: int) -> int:
    """Wait for the process to end, without reaping it; the largest high-water mark of its memory seen meanwhile."""
    highest = 0
    ended = select.poll()
    handle = os.pidfd_open(pid)
    try:
        ended.register(handle, select.POLLIN)
        while not ended.poll(_SAMPLE_MS):
            highest = max(highest, _high_water(pid))
    finally:
        os.close(handle)
    return highest


def _high_water(pid: int) -> int:
    """VmHWM in bytes; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return _fields(text).get("VmHWM", 0) * 1024


def _fields(text: str) -> Mapping[str, int]:
    """The lines `name: number …` of a file in /proc."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    words = {name: rest.split() for name, rest in pairs}
    return {name: int(rest[0]) for name, rest in words.items() if rest and rest[0].isdecimal()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    if not command:
        sys.stderr.write("usage: python -m benchmarks.measure COMMAND ARGUMENT...\n")
        return 2
    try:
        found = measure(command)
    except CommandFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(found.stdout)
    figures = asdict(found)
    del figures["stdout"]
    sys.stderr.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
