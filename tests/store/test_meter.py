"""Every byte is counted before it is read, and a cap is never passed."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import BudgetExceeded, SourceError
from mergepipe.store.contract import Purpose
from mergepipe.store.memory import MemoryStore
from mergepipe.store.meter import Meter, MeteredStore


@given(st.integers(0, 500), st.lists(st.tuples(st.sampled_from(list(Purpose)), st.integers(0, 200))))
def test_charges_never_pass_the_cap(cap: int, charges: list[tuple[Purpose, int]]) -> None:
    """A charge is taken whole or refused, by what is left at its turn; other purposes have no cap."""
    meter = Meter({Purpose.EXPERT: cap})
    bytes_ = dict.fromkeys(Purpose, 0)
    reads = dict.fromkeys(Purpose, 0)
    for purpose, count in charges:
        if purpose is Purpose.EXPERT and bytes_[purpose] + count > cap:
            with pytest.raises(BudgetExceeded) as caught:
                meter.charge(purpose, count, "0:a", "w.safetensors")
            assert (caught.value.needed, caught.value.left) == (count, cap - bytes_[purpose])
            assert caught.value.what == "w.safetensors"
        else:
            meter.charge(purpose, count, "0:a", "w.safetensors")
            bytes_[purpose] += count
            reads[purpose] += 1
    assert meter.spent().bytes == bytes_
    assert meter.spent().reads == reads
    assert bytes_[Purpose.EXPERT] <= cap


def test_threads_together_do_not_pass_the_cap() -> None:
    """However charges interleave, exactly those that fit are taken, and all of them are counted."""
    meter = Meter({Purpose.EXPERT: 1000})
    refused = []
    start = threading.Barrier(8)

    def spend() -> None:
        start.wait()
        for _ in range(100):
            try:
                meter.charge(Purpose.EXPERT, 7, "0:a", "w")
            except BudgetExceeded:
                refused.append(1)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = 1000 // 7
    assert meter.spent().bytes[Purpose.EXPERT] == taken * 7
    assert meter.spent().reads[Purpose.EXPERT] == taken
    assert len(refused) == 800 - taken


def test_expert_bytes_are_kept_by_source() -> None:
    """Only EXPERT bytes are, and a refused charge is in no source's sum."""
    meter = Meter({Purpose.EXPERT: 10})
    meter.charge(Purpose.EXPERT, 4, "0:a", "w")
    meter.charge(Purpose.EXPERT, 1, "0:a", "w")
    meter.charge(Purpose.EXPERT, 3, "1:a", "w")
    meter.charge(Purpose.BASE, 100, "base", "w")
    with pytest.raises(BudgetExceeded):
        meter.charge(Purpose.EXPERT, 3, "2:b", "w")
    assert meter.spent().by_source == {"0:a": 5, "1:a": 3}


def test_a_snapshot_does_not_change() -> None:
    """What `spent` returned stays as it was."""
    meter = Meter()
    before = meter.spent()
    meter.charge(Purpose.INDEX, 5, "0:a", "w")
    assert before.bytes[Purpose.INDEX] == 0
    assert meter.spent().bytes[Purpose.INDEX] == 5


class Recorder(MemoryStore):
    """A store that notes what its meter says when a read arrives, and may fail it."""

    def __init__(self, files: dict[str, bytes], meter: Meter, failing: bool = False) -> None:
        super().__init__(files)
        self.meter, self.failing = meter, failing
        self.seen: list[int] = []

    def read_into(self, key: str, start: int, out: memoryview) -> None:
        self.seen.append(self.meter.spent().bytes[Purpose.EXPERT])
        if self.failing:
            raise SourceError("the disk failed")
        super().read_into(key, start, out)


def test_a_read_is_charged_before_it_is_issued() -> None:
    """When the store underneath is asked, the bytes are already counted, to the handle's purpose and source."""
    meter = Meter()
    inner = Recorder({"w": b"abcdef"}, meter)
    store = MeteredStore(inner, meter, Purpose.EXPERT, "0:a")
    out = bytearray(4)
    store.read_into("w", 1, memoryview(out))
    assert out == b"bcde"
    assert inner.seen == [4]
    assert meter.spent().by_source == {"0:a": 4}


@pytest.mark.parametrize("failing", [True, False])
def test_a_failed_read_has_been_asked_for(failing: bool) -> None:
    """Nothing is refunded: neither for a device's failure nor for a file that ends early."""
    meter = Meter()
    store = MeteredStore(Recorder({"w": b"ab"}, meter, failing), meter, Purpose.EXPERT, "0:a")
    with pytest.raises(SourceError):
        store.read_into("w", 0, memoryview(bytearray(3)))
    assert meter.spent().bytes[Purpose.EXPERT] == 3


def test_a_refused_read_never_reaches_the_store() -> None:
    """Over the cap, nothing is read."""
    meter = Meter({Purpose.EXPERT: 3})
    inner = Recorder({"w": b"abcdef"}, meter)
    with pytest.raises(BudgetExceeded, match="w"):
        MeteredStore(inner, meter, Purpose.EXPERT, "0:a").read_into("w", 0, memoryview(bytearray(4)))
    assert inner.seen == []


def test_listing_and_versions_cost_nothing() -> None:
    """Only reads are charged."""
    meter = Meter({Purpose.EXPERT: 0})
    store = MeteredStore(MemoryStore({"w": b"abc"}), meter, Purpose.EXPERT, "0:a")
    assert store.keys() == ("w",)
    assert store.version("w").size == 3
    store.close()
    assert sum(meter.spent().reads.values()) == 0
