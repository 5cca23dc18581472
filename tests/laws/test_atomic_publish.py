"""Invariant 7: OUT is absent or complete, through real kills, full disks and second runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mergepipe import api
from mergepipe.errors import PublishConflict
from mergepipe.manifest.encode import MANIFEST_NAME
from tests.laws.world import World, published


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A family whose merge into many small shards takes long enough to be killed in the middle."""
    made = World.make(tmp_path_factory.mktemp("larger"), experts=3, hidden=64, vocab=2048, layers=8)
    made.block_bytes = 4096
    return made


def command(recipe: Path, out: Path, *more: str) -> list[str]:
    """The command line as a user runs it."""
    return [sys.executable, "-m", "mergepipe", "merge", str(recipe), str(out), *more]


def staging_of(out: Path) -> list[Path]:
    """Staging folders left beside OUT."""
    return [path for path in out.parent.glob(f".{out.name}.*") if path.is_dir()]


@pytest.mark.parametrize("shards_before_kill", [1, 5])
def test_a_killed_run_leaves_no_out_and_is_resumed(larger: World, shards_before_kill: int) -> None:
    """After kill −9 there is no OUT; the same command finishes it, keeping finished shards, with the same bytes."""
    recipe = larger.recipe("task_arithmetic")
    reference = larger.fresh()
    api.merge(recipe, reference, api.PlanOptions(shard_bytes=20_000), larger.index)
    out = larger.fresh()
    process = subprocess.Popen(
        command(recipe, out, "--shard-size", "20kB"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        done = [p for folder in staging_of(out) for p in folder.rglob("model-*.safetensors")]
        if len(done) > shards_before_kill:
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.001)
    assert process.wait() == -signal.SIGKILL, "the merge ended before it could be killed"
    assert not out.exists()
    kept = {p.name: p.stat().st_mtime_ns for folder in staging_of(out) for p in folder.rglob("model-*.safetensors")}
    subprocess.run(command(recipe, out, "--shard-size", "20kB"), check=True, capture_output=True)
    assert published(out) == published(reference)
    assert staging_of(out) == []
    resumed = [name for name, mtime in kept.items() if (out / name).stat().st_mtime_ns == mtime]
    assert resumed, "no finished shard was used again"


def test_an_existing_out_is_left_alone(world: World) -> None:
    """Without --overwrite nothing is touched; with it, only what MergePipe made is replaced."""
    recipe = world.recipe("linear")
    out, _ = world.merge(recipe)
    before = (out / MANIFEST_NAME).read_bytes()
    with pytest.raises(PublishConflict, match="--overwrite"):
        api.merge(recipe, out, world.options(), world.index)
    assert (out / MANIFEST_NAME).read_bytes() == before
    api.merge(world.recipe("ties"), out, world.options(), world.index, overwrite=True)
    assert json.loads((out / MANIFEST_NAME).read_text())["method"] == "ties"
    assert api.verify(out).ok


def test_a_users_own_folder_is_never_replaced(world: World) -> None:
    """--overwrite does not reach folders that hold no manifest, nor the inputs."""
    recipe = world.recipe("ties")
    own = world.fresh()
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    for target in (own, world.base, world.base / "inside"):
        with pytest.raises(PublishConflict):
            api.merge(recipe, target, world.options(), world.index, overwrite=True)
    assert (own / "thesis.txt").read_text() == "years of work"


def test_a_full_disk_is_said_and_leaves_no_out(larger: World, tmp_path: Path) -> None:
    """Writing beyond what a file may hold (EFBIG, as a full disk in the middle) is a typed error; no OUT."""
    out = larger.fresh()
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000)); "
        "from mergepipe.cli.main import main; sys.argv[0] = 'mergepipe'; main()"
    )
    recipe = larger.recipe("linear")
    arguments = ["merge", str(recipe), str(out), "--index", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_two_runs_cannot_share_an_out(world: World) -> None:
    """A second run on the same OUT is refused at once while the first holds the lock."""
    holder = (
        "import sys, pathlib; from mergepipe.publish.lock import output_lock\n"
        "with output_lock(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    out = world.fresh()
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(PublishConflict):
            api.merge(world.recipe("linear"), out, world.options(), world.index)
    finally:
        process.communicate("")
    api.merge(world.recipe("linear"), out, world.options(), world.index)
    assert api.verify(out).ok
