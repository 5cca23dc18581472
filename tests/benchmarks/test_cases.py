"""Which commands a benchmark runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases import COPY, INDEX, READ, Case, Workplace, cases, write_recipes
from benchmarks.families import Shape, weight_files, write_family
from mergepipe.recipe.parse import load_recipe

MICRO = Shape("micro", 1, 16, 2, 1, 8, 24, 100, qk_norm=False)


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A workplace with a tiny family of three experts, cut into several files each."""
    return Workplace(tmp_path, write_family(tmp_path / "family", MICRO, 3, shard_bytes=2000), ("program",))


def words(case: Case, result: dict[str, object] | None = None) -> list[str]:
    """The case's command, given one merge's result."""
    return list(case.command({} if result is None else {"ties 10%": result}))


@pytest.mark.parametrize("method", ["linear", "task_arithmetic", "ties", "dare_linear", "dare_ties"])
def test_recipes_are_valid(place: Workplace, method: str) -> None:
    """Every method's recipe is one that MergePipe reads."""
    write_recipes(place, [method])
    assert load_recipe(place.recipe(method)).method == method


def test_order_of_a_round(place: Workplace) -> None:
    """The yardsticks come first, then the index, then every merge followed by its floor."""
    names = [case.name for case in cases(place, ["ties"], ["100%", "10%"])]
    assert names == [COPY, READ, INDEX, "ties 100%", "floor of ties 100%", "ties 10%", "floor of ties 10%"]


def test_full_reads_need_no_index(place: Workplace) -> None:
    """Without a budget below the whole no index is built, and a full read never finds one."""
    listed = cases(place, ["ties"], ["100%"])
    assert INDEX not in [case.name for case in listed]
    full = next(case for case in listed if case.merge)
    assert words(full)[words(full).index("--index") + 1] == str(place.no_index)
    capped = next(case for case in cases(place, ["ties"], ["4096blocks"]) if case.merge)
    assert words(capped)[words(capped).index("--index") + 1] == str(place.index)


def test_reading_all_inputs_reads_every_file(place: Workplace) -> None:
    """The yardstick reads the weights of base and experts, each file whole."""
    command = words(cases(place, ["ties"], ["100%"])[1])
    files = [str(file) for model in (place.family.base, *place.family.experts) for file in weight_files(model)]
    assert [command[at + 1] for at, word in enumerate(command) if word == "read"] == files
    assert all(command[at + 2] == "-1" for at, word in enumerate(command) if word == "read")


def test_the_floor_moves_what_the_merge_moves(place: Workplace) -> None:
    """The floor reads as many bytes as the plan, and writes as many as the output has."""
    base = sum(file.stat().st_size for file in weight_files(place.family.base))
    result = {"base_bytes": base, "expert_bytes": {"planned": 5000}, "output_bytes": 1234}
    command = words(cases(place, ["ties"], ["10%"])[-1], result)
    read = {command[at + 1]: int(command[at + 2]) for at, word in enumerate(command) if word == "read"}
    of_base = sum(count for file, count in read.items() if Path(file).parent == place.family.base)
    assert of_base == base
    assert sum(read.values()) == base + 5000
    assert all(count <= Path(file).stat().st_size for file, count in read.items())
    assert command[-3:] == ["write", str(place.out / "weights"), "1234"]
