"""Steps of assembled tensors: slabs are filled with rows of several inputs, each read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mergepipe.checkpoint.assembly import FILL_BYTES, Assembler, Raw
from mergepipe.checkpoint.model import Checkpoint
from mergepipe.execute.combine import block_spans
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.pairs import assembled
from mergepipe.plan.schedule import Limits, Step
from mergepipe.store.contract import ByteStore

Leaves = dict[int, list[tuple[int, list[bytes]]]]


class RowFiller:
    """Fills the steps of one output tensor; any number of threads may use it."""

    def __init__(
        self, logical: LogicalPlan, number: int, checkpoints: Sequence[Checkpoint], stores: Sequence[ByteStore]
    ) -> None:
        self._parts = assembled(logical, logical.tensors[number], checkpoints)
        self._assembler = Assembler(self._parts, [stores[model] for model in self._parts.models])

    def fill(self, step: Step, block: int, slabs: Mapping[int, Raw]) -> Leaves:
        """Fill a step's slabs. Returns, by place, the digests of the stored bytes read for each of its blocks."""
        leaves: Leaves = {place: [] for place in step.slabs}
        for start, stop in block_spans(step, block):
            views = {}
            for place in step.slabs:
                size = self._parts.kind(place).itemsize
                views[place] = slabs[place][(start - step.start) * size : (stop - step.start) * size]
            for place, digests in self._assembler.fill(start, stop, views).items():
                leaves[place].append((start // block, digests))
        return leaves


def filling_bytes(logical: LogicalPlan, limits: Limits) -> int:
    """Bytes of temporaries that filling takes over all reading threads."""
    return limits.readers * FILL_BYTES if any(tensor.assembly for tensor in logical.tensors) else 0
