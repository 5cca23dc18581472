from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mergepipe.errors import OutputError, PublishConflict
from mergepipe.publish.lock import output_lock
from mergepipe.publish.place import lock_file

_HOLD = """
import sys
from pathlib import Path
from mergepipe.publish.lock import output_lock
with output_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(out: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds OUT's lock until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_run_is_refused_with_the_holder(tmp_path: Path) -> None:
    """While another process holds OUT, a run stops at once and names the lock and that process; twice alike."""
    out = tmp_path / "merged"
    with other_run(out) as process:
        for _ in range(2):
            with pytest.raises(PublishConflict) as raised, output_lock(out):
                pytest.fail("two runs hold one lock")
            assert str(lock_file(out)) in str(raised.value)
            assert f"process {process.pid}" in str(raised.value)


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    """After kill -9 the lock is free, though its file is there, and the next run takes it."""
    out = tmp_path / "merged"
    with other_run(out) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert lock_file(out).exists()
        with output_lock(out):
            assert lock_file(out).read_text() == f"{os.getpid()}\n"


def test_lock_ends_with_its_block(tmp_path: Path) -> None:
    """After success and after an error alike the lock is free again, and the file blames nobody."""
    out = tmp_path / "merged"
    with pytest.raises(RuntimeError, match="stop"), output_lock(out):
        raise RuntimeError("stop")
    assert lock_file(out).read_text() == ""
    with output_lock(out):
        pass
    with other_run(out):
        pass


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    """Two merges to one OUT from one program conflict like two processes; the first keeps its lock."""
    out = tmp_path / "merged"
    with output_lock(out):
        with pytest.raises(PublishConflict), output_lock(tmp_path / "." / "merged"):
            pytest.fail("two runs hold one lock")
        with pytest.raises(PublishConflict), output_lock(out):
            pytest.fail("two runs hold one lock")


def test_two_outputs_do_not_meet(tmp_path: Path) -> None:
    """Locks are per OUT, and missing parents are created."""
    with output_lock(tmp_path / "a" / "b" / "one"), output_lock(tmp_path / "a" / "b" / "two"):
        assert (tmp_path / "a" / "b").is_dir()


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """No lock can stand below a file: an error of the output, naming it."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file"), output_lock(tmp_path / "file" / "merged"):
        pytest.fail("locked below a file")
