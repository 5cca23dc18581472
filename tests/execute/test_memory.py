"""A pool never has more slabs than its count."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.execute.memory import SlabPool

pytestmark = pytest.mark.timeout(60)


@given(st.integers(1, 8), st.lists(st.integers(-3, 9), max_size=40))
def test_slabs_are_taken_all_or_none_and_used_again(count: int, turns: list[int]) -> None:
    """A positive turn takes so many, a negative one gives a holding back: never more out than there are."""
    pool = SlabPool(16, count)
    held: list[list[object]] = []
    addresses: set[int] = set()
    for turn in turns:
        out = sum(len(part) for part in held)
        if turn < 0:
            if held:
                pool.give_back(held.pop(turn % len(held)))  # type: ignore[arg-type]
            continue
        taken = pool.try_take(turn)
        assert (taken is None) == (turn > count - out)
        if taken is not None:
            assert len(taken) == turn
            assert all(each.size == 16 for each in taken)
            addresses |= {each.ctypes.data for each in taken}
            held.append(list(taken))
    everyone = [each for part in held for each in part]
    assert len({id(each) for each in everyone}) == len(everyone)
    assert len(addresses) <= count


def test_slabs_do_not_overlap() -> None:
    """Writing into one leaves the others alone."""
    taken = SlabPool(32, 4).try_take(4)
    assert taken is not None
    for number, each in enumerate(taken):
        each[...] = number
    assert [int(each.max()) for each in taken] == [0, 1, 2, 3]


def test_memory_is_allocated_as_it_is_needed() -> None:
    """A pool of a terabyte costs nothing until it is used."""
    pool = SlabPool(1 << 20, 1 << 20)
    taken = pool.try_take(1)
    assert taken is not None
    assert taken[0].size == 1 << 20


def test_threads_share_a_pool() -> None:
    """Together they never hold more than the count, and in the end all slabs are free again."""
    pool = SlabPool(8, 5)
    lock = threading.Lock()
    state = {"out": 0, "most": 0}

    def work(wanted: int) -> None:
        for _ in range(300):
            taken = pool.try_take(wanted)
            if taken is None:
                continue
            with lock:
                state["out"] += wanted
                state["most"] = max(state["most"], state["out"])
            with lock:
                state["out"] -= wanted
            pool.give_back(taken)

    threads = [threading.Thread(target=work, args=(n % 3 + 1,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < state["most"] <= 5
    assert pool.try_take(5) is not None
    assert pool.try_take(1) is None
