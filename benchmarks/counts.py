"""What merges of a small fixed family cost in bytes, calls, buffers and passes: counts, never times.

    python -m benchmarks.counts            print the counts, and how they differ from those recorded
    python -m benchmarks.counts --record   record them in benchmarks/counts.json

The same program on the same inputs gives the same counts on every machine, so that CI can hold them to what is
recorded: tests/benchmarks/test_counts.py. A change that moves them on purpose records them anew, and the diff of the
file shows what it gained or cost.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from benchmarks.families import Shape, write_family
from benchmarks.recipes import TEMPLATES, recipe_text
from mergepipe import api
from mergepipe.core.arrays import Scratch
from mergepipe.execute.memory import SlabPool
from mergepipe.operators.contract import Tile
from mergepipe.plan.access import resolve_tensor
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter

RECORD: Final = Path(__file__).with_name("counts.json")
SHAPE: Final = Shape("counted", 2, 256, 4, 2, 64, 768, 8192, qk_norm=True)
EXPERTS: Final = 3
# Method, budget, whether an index is there before.
Job = tuple[str, str, bool]
JOBS: Final[tuple[Job, ...]] = (
    ("linear", "100%", False),
    ("task_arithmetic", "100%", False),
    ("task_arithmetic", "25%", True),
    ("ties", "100%", False),
    ("ties", "100%", True),
    ("ties", "25%", True),
    ("ties", "4MiB", True),
    ("dare_ties", "100%", False),
    ("della_linear", "100%", False),
    ("breadcrumbs", "100%", False),
    ("sce", "100%", False),
    ("slerp", "100%", False),
    ("model_stock", "25%", True),
)  # fmt: skip
_OPTIONS: Final = api.PlanOptions(block_bytes=64 << 10, shard_bytes=5 << 20)
_LIMITS: Final = api.Limits(memory=64 << 20, readers=2, workers=2)
_TILE: Final = 1 << 16
_GRAIN: Final = 16 << 10  # bytes of temporaries are rounded to this: small objects differ between versions of Python
_READS: Final = ("read", "pread", "readv", "preadv")
_WRITES: Final = ("write", "pwrite", "writev", "pwritev")
_SYNCS: Final = ("fsync", "fdatasync")

Counts = dict[str, dict[str, int]]


def count_all(folder: Path, jobs: Sequence[Job] = JOBS, methods: Sequence[str] = tuple(TEMPLATES)) -> Counts:
    """Counts of the index build and of every job, and of a tile of every method, by name.

    `folder` must be empty, and holds models afterwards.
    """
    family = write_family(folder / "family", SHAPE, EXPERTS, shard_bytes=5 << 20)
    recipes = {method: folder / f"{method}.yml" for method in TEMPLATES}
    for method, recipe in recipes.items():
        recipe.write_text(recipe_text(method, family))
    ready = api.IndexOptions(folder / "index")
    counts: Counts = {}
    with counting() as index:
        api.build_index_of(recipes["ties"], _OPTIONS, ready, _LIMITS)
    counts["index"] = dict(sorted(index.items()))
    for number, (method, budget, indexed) in enumerate(jobs):
        options = replace(_OPTIONS, budget=budget)
        where = ready if indexed else api.IndexOptions(folder / f"no-index-{number}")
        with counting() as merged:
            api.merge(recipes[method], folder / f"out-{number}", options, where, _LIMITS)
        counts[merge_name((method, budget, indexed))] = dict(sorted(merged.items()))
    for method in methods:
        counts[f"tile {method}"] = count_tile(recipes[method], folder / "tile-index")
    return counts


def merge_name(job: Job) -> str:
    """A job's name among the counts."""
    method, budget, indexed = job
    return f"merge {method} {budget}{' indexed' if indexed and budget == '100%' else ''}"


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what happens meanwhile, in all threads.

    Metered bytes and requests by purpose; the system's calls that read, write and sync weight files, with their
    bytes; how often buffers were taken from pools, and the most bytes of them that were out at once.
    """
    counter: Counter[str] = Counter()
    lock = threading.Lock()

    def add(**counts: int) -> None:
        with lock:
            counter.update({name.replace("_", " "): count for name, count in counts.items()})

    held = 0
    charge, take, give_back = Meter.charge, SlabPool.try_take, SlabPool.give_back

    def counted_charge(self: Meter, purpose: Purpose, count: int, source: str, what: str) -> None:
        charge(self, purpose, count, source, what)
        add(**{f"metered_{purpose.value}_bytes": count, f"metered_{purpose.value}_requests": 1})

    def counted_take(self: SlabPool, count: int) -> Any:
        nonlocal held
        taken = take(self, count)
        with lock:
            held += self.size * len(taken or ())
            counter["buffers taken"] += len(taken or ())
            counter["buffer bytes at most"] = max(counter["buffer bytes at most"], held)
        return taken

    def counted_return(self: SlabPool, slabs: list[Any]) -> None:
        nonlocal held
        with lock:
            held -= self.size * len(slabs)
        give_back(self, slabs)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Meter, "charge", counted_charge))
        stack.enter_context(patch.object(SlabPool, "try_take", counted_take))
        stack.enter_context(patch.object(SlabPool, "give_back", counted_return))
        for kind, names in (("read", _READS), ("write", _WRITES)):
            for name in names:
                stack.enter_context(patch.object(os, name, _counted_transfer(getattr(os, name), kind, add)))
        for name in _SYNCS:
            stack.enter_context(patch.object(os, name, _counted_sync(getattr(os, name), add)))
        yield counter


def _counted_transfer(call: Callable[..., Any], kind: str, add: Callable[..., None]) -> Callable[..., Any]:
    def counted(descriptor: int, *words: Any) -> Any:
        result = call(descriptor, *words)
        if _is_weights(descriptor):
            size = result if isinstance(result, int) else len(result)
            add(**{f"system_{kind}_calls": 1, f"system_{kind}_bytes": size})
        return result

    return counted


def _counted_sync(call: Callable[[int], None], add: Callable[..., None]) -> Callable[[int], None]:
    def counted(descriptor: int) -> None:
        call(descriptor)
        if _is_weights(descriptor):
            add(system_syncs=1)

    return counted


def _is_weights(descriptor: int) -> bool:
    """Whether a descriptor is of a weight file: other files hold times and paths, and vary in size."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - asked for every call
    return path.endswith(".safetensors") and ".mpindex." not in path


# --- arithmetic -----------------------------------------------------------------------------------


class _CountingNamespace:
    """numpy, counting what its functions write: elements, and bytes of arrays that nobody gave them."""

    def __init__(self, counter: Counter[str]) -> None:
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found

        def counted(*words: Any, **named: Any) -> Any:
            result = found(*words, **named)
            if isinstance(result, np.ndarray):
                self._counter["elements written"] += result.size
                self._counter["bytes allocated"] += 0 if named.get("out") is not None else result.nbytes
            return result

        return counted


def count_tile(recipe: Path, shelf: Path) -> dict[str, int]:
    """What a method does to combine one tile of 65,536 elements.

    `elements written` by array functions (as many passes over memory, times the tile), `bytes allocated` by them,
    arrays of the `scratch`, and the most bytes of `temporaries` numpy holds beside, once the scratch is there.
    """
    planned = api.plan(recipe, _OPTIONS, api.IndexOptions(shelf), _LIMITS)
    tensors = planned.plan.logical.tensors
    number = max(range(len(tensors)), key=lambda each: tensors[each].elements)
    coefficients = resolve_tensor(planned.plan, planned.operator, number)
    random = np.random.Generator(np.random.SFC64(7))
    base = random.standard_normal(_TILE, np.float32)
    deltas = [0.01 * random.standard_normal(_TILE, np.float32) for _ in tensors[number].experts]
    scratch = Scratch(_TILE, np.dtype(np.float32))
    out = np.empty(_TILE, np.float32)
    counter: Counter[str] = Counter()

    def combine(xp: Any) -> None:
        writers = [_writer(delta) for delta in deltas]
        planned.operator.combine(Tile(0, _TILE, base, writers, scratch, xp), coefficients, out)

    combine(_CountingNamespace(counter))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        combine(np)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {
        "bytes allocated": counter["bytes allocated"],
        "elements written": counter["elements written"],
        "scratch arrays promised": planned.operator.scratch_arrays(len(deltas)),
        "temporaries": round((most - before) / _GRAIN) * _GRAIN,
    }


def _writer(delta: Any) -> Callable[[Any], None]:
    def write(target: Any) -> None:
        target[...] = delta

    return write


# --- against the record ---------------------------------------------------------------------------


def differences(recorded: Mapping[str, Mapping[str, int]], found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """One line for each count that is not as recorded, by name."""
    lines = []
    for job in sorted(recorded.keys() | found.keys()):
        before, now = recorded.get(job, {}), found.get(job, {})
        for what in sorted(before.keys() | now.keys()):
            old, new = before.get(what, 0), now.get(what, 0)
            if old != new:
                change = f" ({new / old - 1:+.1%})" if old else ""
                lines.append(f"{job}: {what}: {old:,} recorded, {new:,} now{change}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 1 where counts differ from the record, and nothing is recorded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counts", description="Counts of a fixed family.")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mergepipe-counts-") as folder:
        found = count_all(Path(folder))
    if given.record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    print(json.dumps(found, indent=1))
    lines = differences(json.loads(RECORD.read_text()), found)
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
