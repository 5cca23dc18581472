"""Which commands a benchmark runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases import COPY, INDEX, Case, Job, Role, Workplace, cases, floor_of, jobs, prepare_words
from benchmarks.families import Shape, weight_files, write_family

MICRO = Shape("micro", 1, 16, 2, 1, 8, 24, 100, qk_norm=False)
FULL, TENTH = Job("ties", "100%", indexed=False), Job("ties", "10%", indexed=True)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A workplace with a tiny family of three experts, cut into several files each."""
    return Workplace(tmp_path, write_family(tmp_path / "family", MICRO, 3, shard_bytes=2000), ("program",))


def words(case: Case, results: dict[str, dict[str, object]] | None = None) -> list[str]:
    """The case's command, given the results of merges."""
    return list(case.command({} if results is None else results))


def option(command: list[str], name: str) -> str:
    """The word after an option."""
    return command[command.index(name) + 1]


def test_order_of_a_round(place: Workplace) -> None:
    """The copy comes first, then the index beside reading everything, then every merge followed by its floors."""
    names = [case.name for case in cases(place, [FULL, TENTH], build_index=True)]
    floors = [[floor_of(name, way) for way in ("buffered", "direct")] for name in (INDEX, "ties 100%", "ties 10%")]
    assert names == [COPY, INDEX, *floors[0], "ties 100%", *floors[1], "ties 10%", *floors[2]]
    assert INDEX not in [case.name for case in cases(place, [FULL], build_index=False)]


def test_mergekit_merges_each_recipe_once_a_round(tmp_path: Path) -> None:
    """Whatever the budgets and threads, mergekit's merge of a method follows its first merge, once, made durable."""
    family = write_family(tmp_path / "family", MICRO, 1)
    place = Workplace(tmp_path, family, ("program",), ("mergekit-yaml", "--quiet"))
    listed = jobs(["linear", "ties"], ["100%", "10%"], [False], [1, 2])
    peers = [case for case in cases(place, listed, build_index=False) if case.role is Role.PEER]
    assert [case.name for case in peers] == ["mergekit linear", "mergekit ties"]
    command = words(peers[1])
    assert "sync" in command[2]
    assert command[4:] == [str(place.recipe("ties")), str(place.out), "mergekit-yaml", "--quiet"]


def test_jobs_are_all_combinations() -> None:
    """A full read comes with and without an index if asked; one below the whole always has one, and comes once."""
    listed = jobs(["linear", "ties"], ["100%", "10%"], [False, True], [None])
    assert [job.name for job in listed] == [
        "linear 100%", "linear 100% indexed", "linear 10%", "ties 100%", "ties 100% indexed", "ties 10%",
    ]  # fmt: skip
    assert [job.name for job in jobs(["ties"], ["2GiB"], [False], [1, 2])] == [
        "ties 2GiB 1 workers",
        "ties 2GiB 2 workers",
    ]
    assert all(job.indexed for job in jobs(["ties"], ["4096blocks", "5MB", "99.9%"], [False], [None]))


def test_merges_find_an_index_or_none(place: Workplace) -> None:
    """Capped merges find the index that was prepared, a full read without index starts from none."""
    merges = [case for case in cases(place, [FULL, TENTH], build_index=True) if case.role is Role.MERGE]
    assert [option(words(case), "--index") for case in merges] == [str(place.no_index), str(place.index)]
    assert option(list(prepare_words(place, TENTH)), "--index") == str(place.index)


def test_the_index_is_measured_from_nothing(place: Workplace) -> None:
    """The measured building never finds the index that merges use, and leaves it alone."""
    built = next(case for case in cases(place, [TENTH], build_index=True) if case.role is Role.INDEX)
    assert option(words(built), "--index") == str(place.no_index)


def test_workers_are_handed_on(place: Workplace) -> None:
    """A number of workers goes to the program; without one it takes its default."""
    merges = [
        case for case in cases(place, jobs(["ties"], ["10%"], [True], [None, 3]), False) if case.role is Role.MERGE
    ]
    assert "--workers" not in words(merges[0])
    assert option(words(merges[1]), "--workers") == "3"


def test_reading_all_inputs_reads_every_file(place: Workplace) -> None:
    """The index's floor reads the weights of base and experts, each file whole, and writes nothing."""
    for case in cases(place, [FULL], build_index=True)[2:4]:
        command = words(case)
        files = [str(file) for model in (place.family.base, *place.family.experts) for file in weight_files(model)]
        assert [command[at + 1] for at, word in enumerate(command) if word == "read"] == files
        assert all(command[at + 2] == "-1" for at, word in enumerate(command) if word == "read")
        assert "write" not in command


@pytest.mark.parametrize("way", ["buffered", "direct"])
def test_the_floor_moves_what_the_merge_moves(place: Workplace, way: str) -> None:
    """The floor reads as many bytes as the plan, and writes as many as the output has."""
    base = sum(file.stat().st_size for file in weight_files(place.family.base))
    result = {"base_bytes": base, "expert_bytes": {"planned": 5000}, "output_bytes": 1234}
    listed = cases(place, [TENTH], build_index=False)
    command = words(next(case for case in listed if case.name == floor_of("ties 10%", way)), {"ties 10%": result})
    assert way in command
    read = {command[at + 1]: int(command[at + 2]) for at, word in enumerate(command) if word == "read"}
    of_base = sum(count for file, count in read.items() if Path(file).parent == place.family.base)
    assert of_base == base
    assert sum(read.values()) == base + 5000
    assert all(count <= Path(file).stat().st_size for file, count in read.items())
    assert command[-3:] == ["write", str(place.out / "weights"), "1234"]


def test_a_method_of_one_expert_is_measured_against_one(place: Workplace) -> None:
    """As slerp takes one expert of three, its floor reads that expert and no other."""
    job = Job("slerp", "100%", indexed=False)
    base = sum(file.stat().st_size for file in weight_files(place.family.base))
    result = {"base_bytes": base, "expert_bytes": {"planned": base}, "output_bytes": base}
    command = words(cases(place, [job], build_index=False)[2], {job.name: result})
    read = {Path(command[at + 1]).parent for at, word in enumerate(command) if word == "read"}
    assert read == {place.family.base, place.family.experts[0]}
