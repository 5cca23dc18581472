"""Opening the models of a pass over their tensors; what is learnt holds only if no file changed meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from mergepipe.checkpoint.assembled import AssembledCheckpoint
from mergepipe.checkpoint.assembly import open_tensors
from mergepipe.checkpoint.model import Checkpoint
from mergepipe.errors import SourceError
from mergepipe.index.model import Pair
from mergepipe.store.contract import Access, ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

# Told a stage, bytes done and bytes in all.
Progress = Callable[[str, int, int], None]


@contextlib.contextmanager
def open_inputs(pairs: Sequence[Pair], meter: Meter) -> Iterator[Mapping[str, ByteStore]]:
    """The stores of all models of `pairs`, by url; what is read is charged to INDEX.

    At the end, raises `SourceError` if a weight file is not the one whose header was read.
    """
    checkpoints = {c.url: (c, source) for pair in pairs for c, source in _inputs(pair)}
    stores: dict[str, ByteStore] = {}
    try:
        for url, (checkpoint, source) in checkpoints.items():
            stores[url] = open_tensors(checkpoint, meter, Purpose.INDEX, source, Access.SEQUENTIAL)
        yield stores
        for model in _models([checkpoint for checkpoint, _ in checkpoints.values()]):
            _require_unchanged(model, meter)
    finally:
        for store in stores.values():
            store.close()


def counter(progress: Progress | None, stage: str, total: int) -> Callable[[int], None]:
    """What workers tell bytes to as they are worked through; tells `progress` their sum, from one thread at a time."""
    done = 0
    lock = threading.Lock()

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            if progress is not None:
                progress(stage, done, total)

    return advance


def _inputs(pair: Pair) -> tuple[tuple[Checkpoint, str], tuple[Checkpoint, str]]:
    return (pair.base, "base"), (pair.expert, pair.source)


def _models(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The models whose files were read: of an assembled checkpoint, those its tensors are assembled from."""
    models: dict[str, Checkpoint] = {}
    for checkpoint in checkpoints:
        if isinstance(checkpoint, AssembledCheckpoint):
            models |= {model.url: model for model in checkpoint.sources.values()}
        else:
            models[checkpoint.url] = checkpoint
    return list(models.values())


def _require_unchanged(checkpoint: Checkpoint, meter: Meter) -> None:
    store = open_store(checkpoint.url, meter, Purpose.INDEX, checkpoint.ref, Access.SEQUENTIAL)
    try:
        for file in checkpoint.files:
            found = store.version(file.key)
            if found != file.version:
                raise SourceError(
                    f"{checkpoint.ref}/{file.key}: changed while it was read (its size, times or inode are now "
                    f"{found}, were {file.version}); run again when it is complete"
                )
    finally:
        store.close()
