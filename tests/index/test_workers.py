"""Jobs on threads: finds in the jobs' order, and an end to all of them when one fails."""

from __future__ import annotations

import threading

import pytest

from mergepipe.index.workers import on_threads

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_finds_are_in_order(workers: int) -> None:
    """Whatever is begun first."""
    jobs = list(range(40))
    assert on_threads(lambda n: n * n, jobs, [n % 7 for n in jobs], workers, lambda: None) == [n * n for n in jobs]


def test_large_jobs_are_begun_first() -> None:
    """So that no thread is left with one at the end; small ones keep their order."""
    begun: list[int] = []
    on_threads(begun.append, [1, 2, 300, 4, 500], [1, 2, 300, 4, 500], 1, lambda: None)
    assert begun == [500, 300, 1, 2, 4]


def test_the_first_failure_stops_all() -> None:
    """Those that run are told, those that wait are not begun, and the failure is raised when all have ended."""
    stopped, begun = threading.Event(), []

    def run(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise ValueError("the first")
        assert stopped.wait(30)

    with pytest.raises(ValueError, match="the first"):
        on_threads(run, list(range(50)), [1] * 50, 2, stopped.set)
    assert stopped.is_set()
    assert len(begun) < 50
    assert not [each for each in threading.enumerate() if each.name.startswith("index")]
