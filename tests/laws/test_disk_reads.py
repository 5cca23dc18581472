"""The meter tells the truth: the system's own counts agree with it, and only the store opens inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mergepipe.testing.checkpoints import write_checkpoint
from tests.laws.world import World

PROGRAM = """
import json, sys, pathlib
from mergepipe import api
def rchar():
    return int(dict(l.split(": ") for l in open("/proc/self/io").read().splitlines())[sys.argv[4]])
recipe, out, index, field, budget = sys.argv[1:6]
options = api.PlanOptions(budget=budget or None, block_bytes=65536)
planned = api.plan(pathlib.Path(recipe), options, api.IndexOptions(pathlib.Path(index)))
api.save_plan(planned, pathlib.Path(out + ".plan"))
before = rchar()
result = api.merge_planned(pathlib.Path(out + ".plan"), pathlib.Path(out))
print(json.dumps([rchar() - before, result]))
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Four tensors of 2 MB: large against headers and sidecars."""
    folder = tmp_path_factory.mktemp("wide")
    draw = np.random.default_rng(5)
    base = {f"model.layers.{n}.mlp.up_proj.weight": draw.normal(0, 0.02, (1024, 1024)) for n in range(4)}
    paths = []
    for number in range(4):
        moved = {name: values + (number > 0) * draw.normal(0, 1e-3, values.shape) for name, values in base.items()}
        typed = {name: ("BF16", values.astype(np.float32)) for name, values in moved.items()}
        paths.append(write_checkpoint(folder / f"m{number}", typed, {"architectures": ["LlamaForCausalLM"]}))
    return World(folder, paths[0], tuple(paths[1:]), 65536)


def run(wide: World, budget: str, field: str) -> tuple[int, dict[str, int]]:
    """Bytes by the system's count while executing a plan, and what the meter says."""
    recipe, out = wide.recipe("task_arithmetic"), wide.fresh()
    arguments = [str(recipe), str(out), str(wide.folder / "index"), field, budget]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    counted, result = json.loads(done.stdout)
    return counted, {
        "expert": result["expert_bytes"]["read"],
        "base": result["base_bytes_read"],
        "reads": result["reads"],
    }


@pytest.mark.parametrize("budget", ["", "10%"])
def test_the_process_reads_what_the_meter_says(wide: World, budget: str) -> None:
    """`rchar` while executing is the metered bytes plus headers, plan and sidecars (a few hundred kB at most)."""
    counted, metered = run(wide, budget, "rchar")
    expected = metered["expert"] + metered["base"]
    assert expected <= counted <= expected + 400_000


@pytest.mark.parametrize("budget", ["", "10%"])
def test_a_cold_disk_is_asked_for_what_the_meter_says(wide: World, budget: str) -> None:
    """From a cold cache the system reads at most 5 % and a page a request more than was metered."""
    wide_files = [path for folder in (wide.base, *wide.experts) for path in folder.glob("*.safetensors")]
    run(wide, budget or "99%", "rchar")  # builds the index while the files are still warm
    for path in wide_files:
        _drop(path)
    if _resident(wide_files):
        pytest.skip("this file system keeps pages that it was advised to drop")
    counted, metered = run(wide, budget, "read_bytes")
    expected = metered["expert"] + metered["base"]
    assert counted <= 1.05 * expected + 4096 * metered["reads"] + 400_000


def test_only_the_store_opens_inputs(world: World) -> None:
    """An audit hook sees every file opened below an input's folder come from `mergepipe/store/`."""
    recipe, out = world.recipe("ties"), world.fresh()
    program = """
import sys, traceback
inputs, seen = sys.argv[1], []
def hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)) and str(args[0]).startswith(inputs):
        frames = [f.filename for f in traceback.extract_stack() if "mergepipe" in f.filename]
        seen.append((args[0], frames[-1] if frames else "?"))
sys.addaudithook(hook)
sys.argv = ["mergepipe", *sys.argv[2:]]
from mergepipe.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
assert seen, "the hook saw nothing"
wrong = [s for s in seen if "/store/" not in s[1]]
print("wrong:", wrong, file=sys.stderr)
sys.exit(3 if wrong else 0)
"""
    arguments = [str(world.folder / "family"), "merge", str(recipe), str(out), "--budget", "30%"]
    arguments += ["--block-size", "64", "--index", str(world.folder / "fresh-index")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _resident(paths: list[Path]) -> bool:
    """Whether reading one dropped file needs no disk at all."""
    before = _read_bytes()
    with paths[-1].open("rb") as file:
        file.read()
    cold = _read_bytes() > before
    _drop(paths[-1])
    return not cold


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])
