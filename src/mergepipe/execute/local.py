"""Run a schedule on this machine, shard after shard, skipping shards a killed run has finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.execute.shard import Progress, ShardWork, execute_shard
from mergepipe.manifest.model import Receipt
from mergepipe.operators.contract import Operator
from mergepipe.plan.access import AccessPlan
from mergepipe.plan.schedule import Limits, Schedule


def run_locally(
    plan: AccessPlan,
    operator: Operator,
    schedule: Schedule,
    checkpoints: tuple[Checkpoint, ...],
    limits: Limits,
    folder: Path,
    finished: Mapping[str, Receipt],
    record: Callable[[Receipt], None],
    progress: Progress,
) -> tuple[Receipt, ...]:
    """Execute every shard not in `finished` into `folder`; `record` keeps each receipt as it comes."""
    receipts = []
    for shard in schedule.shards:
        receipt = finished.get(shard.name)
        if receipt is None:
            work = ShardWork(plan, operator, shard, checkpoints, limits)
            receipt = execute_shard(work, folder / shard.name, progress)
            record(receipt)
        else:
            progress(receipt.file.size)
        receipts.append(receipt)
    return tuple(receipts)
