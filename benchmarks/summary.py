"""What rounds of measurements come to: one row a case, with its ratios to floor, cp and mergekit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.cases import COPY, WAYS, Case, Job, Role, floor_of, peer_of
from benchmarks.rounds import Measured
from mergepipe.core.units import format_bytes

# Median, least and greatest of the rounds.
Spread = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Floor:
    """The least a round's bytes took to move: the faster way to read them and the faster way to write them."""

    seconds: float
    reading: str
    writing: str


@dataclass(frozen=True, slots=True)
class Row:
    """One case over all rounds, in seconds and bytes. Ratios are of wall times within a round.

    `by_peer` says how many times as long mergekit takes. `metered` is what the program's own meter counted:
    experts, base and what was read to know facts; `expert_bytes` are the part of it that a budget caps.
    """

    case: str
    role: Role
    job: Job | None
    wall: Spread
    floor: Spread | None
    floor_ways: str
    to_floor: Spread | None
    to_copy: Spread
    peer: Spread | None
    by_peer: Spread | None
    user: float
    system: float
    peak_rss: int
    metered: int | None
    expert_bytes: int | None
    asked_bytes: int
    disk_bytes: int


def summarise(measured: Sequence[Measured]) -> list[Row]:
    """One row for each case but the floors, which are columns; in the order in which they ran."""
    rounds = {(each.name, each.run): each for each in measured}
    shown = dict.fromkeys(each.case for each in measured if each.case.role is not Role.FLOOR)
    return [_row(case, [each for each in measured if each.case is case], rounds) for case in shown]


def _row(case: Case, mine: Sequence[Measured], rounds: Mapping[tuple[str, int], Measured]) -> Row:
    floors = {each.run: floor for each in mine if (floor := _floor(case.name, each.run, rounds)) is not None}
    peer = "" if case.job is None else peer_of(case.job.method)
    theirs = {each.run: rounds[peer, each.run].figures.wall for each in mine if (peer, each.run) in rounds}
    copies = {each.run: rounds[COPY, each.run].figures.wall for each in mine}

    def over(others: Mapping[int, float], ratio: Callable[[float, float], float]) -> Spread | None:
        ratios = [ratio(each.figures.wall, others[each.run]) for each in mine if each.run in others]
        return _spread(ratios) if ratios else None

    seconds = {run: floor.seconds for run, floor in floors.items()}
    result = mine[-1].result
    to_copy = over(copies, lambda ours, copy: ours / copy)
    assert to_copy is not None
    return Row(
        case=case.name,
        role=case.role,
        job=case.job,
        wall=_spread([each.figures.wall for each in mine]),
        floor=_spread(list(seconds.values())) if seconds else None,
        floor_ways=_ways(list(floors.values())),
        to_floor=over(seconds, lambda ours, floor: ours / floor),
        to_copy=to_copy,
        peer=_spread(list(theirs.values())) if theirs else None,
        by_peer=over(theirs, lambda ours, theirs: theirs / ours),
        user=median(each.figures.user for each in mine),
        system=median(each.figures.system for each in mine),
        peak_rss=max(each.figures.peak_rss for each in mine),
        metered=None if result is None else _metered(result),
        expert_bytes=None if result is None else result["expert_bytes"]["read"],
        asked_bytes=max(each.figures.asked_read for each in mine),
        disk_bytes=max(each.figures.disk_read for each in mine),
    )


def _floor(name: str, run: int, rounds: Mapping[tuple[str, int], Measured]) -> Floor | None:
    tried = {}
    for way in WAYS:
        each = rounds.get((floor_of(name, way), run))
        if each is None or each.result is None:
            return None
        tried[way] = each.result
    reading = min(WAYS, key=lambda way: float(tried[way]["read"]))
    writing = min(WAYS, key=lambda way: float(tried[way]["write"]))
    return Floor(float(tried[reading]["read"]) + float(tried[writing]["write"]), reading, writing)


def _ways(floors: Sequence[Floor]) -> str:
    """How the floors of the rounds were reached: initials of the ways to read and to write; all that occurred."""
    return ",".join(dict.fromkeys(f"{floor.reading[0]}/{floor.writing[0]}" for floor in floors))


def _metered(result: Mapping[str, object]) -> int:
    experts = result["expert_bytes"]
    assert isinstance(experts, Mapping)
    return int(experts["read"]) + int(str(result["base_bytes"])) + int(str(result["index_bytes"]))


def _spread(values: Sequence[float]) -> Spread:
    return median(values), min(values), max(values)


# --- as text --------------------------------------------------------------------------------------

_HEADS = (
    "", "wall s", "floor s", "r/w", "× floor", "× cp", "mergekit s", "faster ×", "user s", "system s", "peak RSS",
    "metered", "of experts", "asked", "from disk",
)  # fmt: skip


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of text."""
    body = [
        (
            row.case,
            _shown(row.wall),
            _shown(row.floor),
            row.floor_ways,
            _shown(row.to_floor),
            _shown(row.to_copy),
            _shown(row.peer),
            _shown(row.by_peer),
            f"{row.user:.2f}",
            f"{row.system:.2f}",
            format_bytes(row.peak_rss),
            _bytes(row.metered),
            _bytes(row.expert_bytes),
            format_bytes(row.asked_bytes),
            format_bytes(row.disk_bytes),
        )
        for row in rows
    ]
    return aligned([_HEADS, *body])


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            word.ljust(width) if at == 0 else word.rjust(width)
            for at, (word, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def _shown(spread: Spread | None) -> str:
    if spread is None:
        return ""
    middle, least, most = spread
    return f"{middle:.2f} ({least:.2f}–{most:.2f})"


def _bytes(count: int | None) -> str:
    return "" if count is None else format_bytes(count)
