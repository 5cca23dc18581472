"""What rounds of measurements come to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.cases import COPY, INDEX, Case, Job, Role, floor_of, peer_of
from benchmarks.measure import Measurement
from benchmarks.rounds import Measured
from benchmarks.summary import Spread, summarise, table

JOB = Job("ties", "10%", indexed=True)
RESULT = {"expert_bytes": {"read": 7}, "base_bytes": 100, "index_bytes": 1000}


def case(name: str, role: Role) -> Case:
    """A case that is never run."""
    return Case(name, role, lambda _: [], JOB if role is Role.MERGE else None)


CASES = {
    COPY: case(COPY, Role.COPY),
    JOB.name: case(JOB.name, Role.MERGE),
    **{floor_of(JOB.name, way): case(floor_of(JOB.name, way), Role.FLOOR) for way in ("buffered", "direct")},
    peer_of("ties"): case(peer_of("ties"), Role.PEER),
}


def measured(name: str, run: int, wall: float, result: Mapping[str, Any] | None = None) -> Measured:
    """A case that took `wall` seconds."""
    return Measured(CASES[name], run, Measurement(wall, 0.5, 0.25, 1000, 20, 30, 40, 50, ""), 0, result)


def a_round(run: int, slow: float, peer: bool = True) -> list[Measured]:
    """A round in which everything takes `slow` times as long."""
    return [
        measured(COPY, run, 2.0 * slow),
        measured(JOB.name, run, 8.0 * slow, RESULT),
        measured(floor_of(JOB.name, "buffered"), run, 9.0, {"read": 3.0 * slow, "write": 2.0 * slow}),
        measured(floor_of(JOB.name, "direct"), run, 9.0, {"read": 4.0 * slow, "write": 1.0 * slow}),
        *([measured(peer_of("ties"), run, 24.0 * slow)] if peer else []),
    ]


def test_ratios_are_taken_within_a_round() -> None:
    """A slow round slows yardstick and merge alike: the ratio of neighbours is what counts."""
    rows = summarise([*a_round(0, 1.0), *a_round(1, 10.0, peer=False), *a_round(2, 2.0)])
    assert [row.case for row in rows] == [COPY, JOB.name, peer_of("ties")]
    merge = rows[1]
    assert merge.wall == (16.0, 8.0, 80.0)
    assert merge.to_copy == (4.0, 4.0, 4.0)
    assert merge.to_floor == (2.0, 2.0, 2.0)
    assert merge.by_peer == (3.0, 3.0, 3.0)
    assert merge.peer == (36.0, 24.0, 48.0)
    assert rows[0].to_floor is None
    assert rows[0].peer is None


def test_the_floor_is_the_faster_way_of_each() -> None:
    """Reading and writing each count as the faster of the two ways did them, and it is said which."""
    merge = summarise(a_round(0, 1.0))[1]
    assert merge.floor == (4.0, 4.0, 4.0)
    assert merge.floor_ways == "b/d"


def test_bytes_as_the_program_metered_them() -> None:
    """The meter's figures are the sum of all purposes, and the part that a budget caps."""
    copy, merge, _ = summarise(a_round(0, 1.0))
    assert (merge.metered, merge.expert_bytes) == (1107, 7)
    assert (copy.metered, copy.expert_bytes) == (None, None)


def test_an_index_is_measured_against_reading(monkeypatch: Any) -> None:
    """The index's floor is reading everything, however fast writing nothing is."""
    names = {INDEX: Role.INDEX, floor_of(INDEX, "buffered"): Role.FLOOR, floor_of(INDEX, "direct"): Role.FLOOR}
    for name, role in names.items():
        monkeypatch.setitem(CASES, name, case(name, role))
    rows = summarise(
        [
            measured(COPY, 0, 1.0),
            measured(INDEX, 0, 6.0),
            measured(floor_of(INDEX, "buffered"), 0, 9.0, {"read": 3.0, "write": 0.0}),
            measured(floor_of(INDEX, "direct"), 0, 9.0, {"read": 2.0, "write": 0.0}),
        ]
    )
    ratio: Spread = (3.0, 3.0, 3.0)
    assert rows[1].to_floor == ratio


def test_table_has_a_line_for_each_case() -> None:
    """Every row shows median and range of its ratios; columns line up."""
    lines = table(summarise(a_round(0, 1.0)))
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert "2.00 (2.00–2.00)" in lines[2]
