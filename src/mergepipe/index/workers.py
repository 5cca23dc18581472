"""Jobs on a few threads, their finds in the jobs' order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

Job = TypeVar("Job")
Finds = TypeVar("Finds")


def on_threads(
    run: Callable[[Job], Finds], jobs: Sequence[Job], sizes: Sequence[int], workers: int, stop: Callable[[], None]
) -> list[Finds]:
    """`run` of every job, in the jobs' order; `sizes` tell large from small. At least one worker.

    The first failure, or an interruption, is raised after `stop` was called and all have ended.
    """
    # Large ones first, so that no thread is left with one at the end; the others in the order of the files.
    share = sum(sizes) // (4 * workers)
    order = sorted(range(len(jobs)), key=lambda n: -sizes[n] if sizes[n] > share else 0)
    with ThreadPoolExecutor(workers, thread_name_prefix="index") as pool:
        futures = {n: pool.submit(run, jobs[n]) for n in order}
        try:
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            stop()
            pool.shutdown(cancel_futures=True)
    return [futures[n].result() for n in range(len(jobs))]
