"""A shard's work is values: it can go to another process and does the same there."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path

import pytest

from mergepipe.execute.shard import ShardWork, execute_shard
from mergepipe.manifest.model import Receipt
from mergepipe.plan.schedule import Limits
from mergepipe.testing.checkpoints import write_family
from mergepipe.testing.plans import corridor
from tests.execute.naive import merged, published

pytestmark = pytest.mark.timeout(60)


def elsewhere(data: bytes, path: str) -> Receipt:
    """What a worker process does."""
    work: ShardWork = pickle.loads(data)
    return execute_shard(work, Path(path), _quiet)


def _quiet(_: int) -> None:
    return None


def test_shards_can_be_made_in_other_processes(tmp_path: Path) -> None:
    """Each opens its own inputs and its own meter; receipts and files are those of a run in one process."""
    family = write_family(tmp_path, experts=2)
    way = corridor(family.base, family.experts, block_bytes=64, shard_bytes=2000)
    plan = way.choose("40%")
    limits = Limits(memory=32 << 20)
    schedule = way.lay_out(plan, limits)
    here = way.run(plan, tmp_path / "here", limits)
    (tmp_path / "there").mkdir()
    works = [ShardWork(plan, way.operator, shard, way.checkpoints, limits) for shard in schedule.shards]
    tasks = [(pickle.dumps(work), str(tmp_path / "there" / work.shard.name)) for work in works]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.starmap(elsewhere, tasks)
    assert len(there) > 1
    assert tuple(there) == here
    assert published(tmp_path / "there") == merged(plan)


def test_progress_is_told_every_byte_of_the_tensors(tmp_path: Path) -> None:
    """In order, as they are written; the sum is the payload."""
    family = write_family(tmp_path, experts=1)
    way = corridor(family.base, family.experts)
    plan = way.choose()
    told: list[int] = []
    limits = Limits(memory=32 << 20)
    work = ShardWork(plan, way.operator, way.lay_out(plan, limits).shards[0], way.checkpoints, limits)
    execute_shard(work, tmp_path / "model.safetensors", told.append)
    assert sum(told) == way.checkpoints[0].payload_bytes
    assert all(count > 0 for count in told)
