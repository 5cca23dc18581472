"""Execute one output shard: read, combine, write, hash, overlapped; memory is bounded by the slabs.

Readers fill slabs ahead in plan order, workers combine full ones, the caller's thread writes results
in output order and gives slabs back. A step takes all its slabs at once before its reads are issued,
and only the oldest step is waited for, so no order of completion can block the pipeline.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.writer import ShardWriter
from mergepipe.core.extents import PAGE
from mergepipe.execute.assemble import Leaves, RowFiller
from mergepipe.execute.combine import (
    Raw,
    StepResult,
    TensorTask,
    Workspace,
    combine_step,
    kernel_of,
    tile_elements,
    worth_compiling,
)
from mergepipe.execute.ledger import ReadLedger
from mergepipe.execute.memory import SlabPool
from mergepipe.manifest.model import FileRecord, Receipt
from mergepipe.operators.contract import Operator
from mergepipe.plan.access import AccessPlan, is_combined, read_set, resolve_tensor
from mergepipe.plan.schedule import Limits, Read, ShardPlan, Step, steps
from mergepipe.store.contract import ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

Progress = Callable[[int], None]
_ALIGNED = 8  # bytes of the widest element


@dataclass(frozen=True, slots=True)
class ShardWork:
    """Everything one shard's execution needs, as values."""

    plan: AccessPlan
    operator: Operator
    shard: ShardPlan
    checkpoints: tuple[Checkpoint, ...]
    limits: Limits


def execute_shard(work: ShardWork, path: Path, progress: Progress) -> Receipt:
    """Write one output file at `path`; `progress` is told the bytes written so far added.

    Reads exactly the shard's planned bytes: its own meter refuses an expert byte more. Raises
    `NonFiniteError`, `StaleIndex`, `SourceError`, `OutputError`; the file is then unfinished.
    """
    plan, shard = work.plan, work.shard
    meter = Meter({Purpose.EXPERT: shard.allowance})
    entries = [(t.name, t.out_dtype, t.shape) for t in (plan.logical.tensors[n] for n in shard.tensors)]
    ledger = ReadLedger(plan)
    with ExitStack() as stack:
        sink = stack.enter_context(ShardWriter(path, entries))
        stores = [stack.enter_context(_Closing(store)) for store in _open_stores(plan, meter)]
        pipeline = stack.enter_context(_Pipeline(work, stores))
        for pending in pipeline.run():
            result = pending.result.result()
            ledger.retire(pending.task, result)
            sink.append(result.out)
            progress(result.out.nbytes)
            pipeline.release(pending)
            if pending.step.stop == pending.task.tensor.elements:
                ledger.finish_tensor(pending.task)
        size, sha256 = sink.close()
    spent = meter.spent()
    return Receipt(
        file=FileRecord(shard.name, size, sha256),
        read_digests={str(n): digest for n, digest in enumerate(ledger.digests())},
        bytes_by_purpose={purpose.value: count for purpose, count in spent.bytes.items() if count},
        reads_by_purpose={purpose.value: count for purpose, count in spent.reads.items() if count},
        expert_bytes_by_source=dict(spent.by_source),
    )


def _open_stores(plan: AccessPlan, meter: Meter) -> Iterator[ByteStore]:
    for number, each in enumerate(plan.logical.inputs):
        yield open_store(each.url, meter, Purpose.EXPERT if number else Purpose.BASE, each.source)


class _Closing:
    def __init__(self, store: ByteStore) -> None:
        self._store = store

    def __enter__(self) -> ByteStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


class _Pending:
    """A step under way: its slabs, how many of its reads are outstanding, its result to come.

    It holds `taken` of the pool, one for each place and, unless the base's bytes are the result, one for that.
    """

    def __init__(self, task: TensorTask, step: Step, taken: list[Raw]) -> None:
        self.task, self.step, self.taken = task, step, taken
        shifts = {read.place: _shift(read) for read in step.reads}
        self.slabs = {place: slab[shifts.get(place, 0) :] for place, slab in zip(step.slabs, taken, strict=False)}
        self.out = taken[-1] if len(taken) > len(step.slabs) else None
        self.outstanding = len(step.reads)
        self.leaves: Leaves = {}
        self.lock = threading.Lock()
        self.result: Future[StepResult] = Future()


class _Pipeline:
    """Keeps as many steps under way as slabs allow."""

    def __init__(self, work: ShardWork, stores: Sequence[ByteStore]) -> None:
        self._work = work
        self._stores = stores
        self._pool = SlabPool(work.shard.slab_bytes + PAGE, work.shard.slabs)
        self._readers = ThreadPoolExecutor(work.limits.readers, "mergepipe-read")
        self._workers = ThreadPoolExecutor(work.limits.workers, "mergepipe-combine")
        self._stopped = False
        self._rows: tuple[int, RowFiller] | None = None
        self._compiled = worth_compiling(work.plan)
        capacity = tile_elements(work.operator, work.plan, work.limits)
        self._spaces = deque(Workspace(capacity) for _ in range(work.limits.workers))

    def __enter__(self) -> _Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._readers.shutdown(cancel_futures=True)
        self._workers.shutdown(cancel_futures=True)

    def run(self) -> Iterator[_Pending]:
        """Steps in output order, each as soon as it is the oldest; its result may still be to come."""
        waiting: deque[_Pending] = deque()
        for task, step in self._steps():
            while (begun := self._begin(task, step)) is None:
                yield waiting.popleft()
            waiting.append(begun)
        yield from waiting

    def release(self, pending: _Pending) -> None:
        """Give a written step's slabs back."""
        pending.slabs.clear()
        self._pool.give_back(pending.taken)

    def _steps(self) -> Iterator[tuple[TensorTask, Step]]:
        task: TensorTask | None = None
        for step in steps(self._work.plan, self._work.shard, self._work.checkpoints):
            if task is None or task.number != step.tensor:
                task = _task(self._work, step.tensor, self._compiled)
            yield task, step

    def _begin(self, task: TensorTask, step: Step) -> _Pending | None:
        tensor = task.tensor
        verbatim = len(step.slabs) == 1 and tensor.dtype == tensor.out_dtype and task.copies_unread
        taken = self._pool.try_take(len(step.slabs) + (not verbatim))
        if taken is None:
            return None
        pending = _Pending(task, step, taken)
        for read in step.reads:
            self._readers.submit(self._fill, pending, read, pending.slabs[read.place])
        if tensor.assembly is not None:
            self._readers.submit(self._fill_rows, pending, self._filler(task.number))
        return pending

    def _filler(self, number: int) -> RowFiller:
        """The one for the tensor under way."""
        if self._rows is None or self._rows[0] != number:
            work = self._work
            self._rows = number, RowFiller(work.plan.logical, number, work.checkpoints, self._stores)
        return self._rows[1]

    def _fill_rows(self, pending: _Pending, filler: RowFiller) -> None:
        try:
            if not self._stopped:
                pending.leaves = filler.fill(pending.step, pending.task.block, pending.slabs)
                self._workers.submit(self._combine, pending)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the step's owner must learn of it
            pending.result.set_exception(error)

    def _fill(self, pending: _Pending, read: Read, slab: Raw) -> None:
        try:
            if not self._stopped:
                window = memoryview(slab)[read.offset : read.offset + read.stop - read.start]
                self._stores[read.input].read_into(read.key, read.start, window)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the step's owner must learn of it
            with pending.lock:
                if not pending.result.done():
                    pending.result.set_exception(error)
            return
        with pending.lock:
            pending.outstanding -= 1
            ready = pending.outstanding == 0 and not pending.result.done()
        if ready and not self._stopped:
            self._workers.submit(self._combine, pending)

    def _combine(self, pending: _Pending) -> None:
        space = self._spaces.popleft()
        try:
            work = self._work
            result = combine_step(
                work.plan, work.operator, pending.task, pending.step, pending.slabs, pending.out, space
            )
        except BaseException as error:  # noqa: BLE001 - whatever it is, the step's owner must learn of it
            pending.result.set_exception(error)
        else:
            # Of assembled rows the bytes that were read count, not what they were put together to.
            pending.result.set_result(replace(result, leaves=pending.leaves) if pending.leaves else result)
        finally:
            self._spaces.append(space)


def _shift(read: Read) -> int:
    """Where in a slab a place's bytes begin: as far into a page as in their file, for reads straight into it.

    At the slab's start where elements would not be aligned.
    """
    begin = (read.start - read.offset) % PAGE
    return 0 if begin % _ALIGNED else begin


def _task(work: ShardWork, number: int, compiled: bool) -> TensorTask:
    tensor, access = work.plan.logical.tensors[number], work.plan.tensors[number]
    blocks = -(-tensor.elements // access.block)
    read = np.zeros((len(tensor.experts), blocks), np.bool_)
    for place in range(len(tensor.experts)):
        read[place] = read_set(access, place, blocks)
    if not is_combined(tensor):
        return TensorTask(number, tensor, access.block, read, None, True)
    coefficients = resolve_tensor(work.plan, work.operator, number)
    kernel = kernel_of(tensor, coefficients) if compiled else None
    copies = work.operator.copies_unread(coefficients)
    return TensorTask(number, tensor, access.block, read, coefficients, copies, kernel)
