"""Facts of several experts together: the plain ones, computed once, kept, and found again while they are true."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mergepipe import api
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.errors import MergePipeError, NonFiniteError, SourceError, UsageError
from mergepipe.index.group_storage import Group, group_path
from mergepipe.index.groups import gather, survey_groups
from mergepipe.index.model import Knowledge, Pair, WantedGroup
from mergepipe.index.storage import Shelf
from mergepipe.plan.compose import compose_models
from mergepipe.plan.family import FamilyRules, align
from mergepipe.plan.pairs import index_pairs
from mergepipe.stats.contract import GramNeed, ImportanceNeed, OverlapNeed, VarianceMaskNeed, VectorGramNeed
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import write_checkpoint
from tests.index.pairs import pairs_of, small_family

MEMORY = 512 << 20
SHAPES = {"w": (300, 257), "v": (70_001,), "s": (), "long": (2, 70_000)}
CODES = [("BF16", "F32", "F64"), ("F32", "F16", "BF16")]


def exact_family(folder: Path, codes: tuple[str, ...]) -> tuple[list[Pair], dict[str, np.ndarray[Any, Any]]]:
    """Base and two experts; per tensor the exact matrix of (θ₀, δ₁, δ₂) as rows in float64."""
    draw = np.random.default_rng(7)
    stacks: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in SHAPES}
    for number, code in enumerate(codes):
        tensors = {
            name: (code, draw.normal(0, 1, shape).astype(np.float16).astype(np.float32))
            for name, shape in SHAPES.items()
        }
        tensors = {
            name: (code, (np.round(values * 16) / 16).astype(np.float32)) for name, (code, values) in tensors.items()
        }
        write_checkpoint(folder / str(number), tensors, {})
        for name, (_, values) in tensors.items():
            kind = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}[code]
            stacks[name].append(np.asarray(values).astype(kind).astype(np.float64).ravel())
    opened = [open_checkpoint(str(folder / str(n)), Meter()) for n in range(3)]
    composition = compose_models(align(opened[0], opened[1:], FamilyRules()), {}, None, [{}, {}])
    rows = {n: np.stack([s[0], s[1] - s[0], s[2] - s[0]]) for n, s in stacks.items()}
    return index_pairs(composition, 1 << 20), rows


@pytest.mark.parametrize("codes", CODES)
def test_inner_products_are_the_plain_ones(tmp_path: Path, codes: tuple[str, ...]) -> None:
    """Of whole tensors, of rows and of columns; every byte is charged to INDEX and announced."""
    pairs, rows = exact_family(tmp_path, codes)
    wanted = [WantedGroup((0, 1), name, GramNeed()) for name in SHAPES]
    wanted += [WantedGroup((0, 1), name, VectorGramNeed(axis)) for name in ("w", "long") for axis in (-1, 0)]
    meter = Meter()
    found = gather(survey_groups(pairs, wanted, None), meter, 512 << 20, 2)
    assert (
        meter.spent().bytes[Purpose.INDEX] == found.index_bytes == survey_groups(pairs, wanted, None).cost(512 << 20, 2)
    )
    for each, fact in found.group_facts.items():
        stack = rows[each.tensor]
        vectors = stack[:, None, :]
        if isinstance(each.need, VectorGramNeed):
            shape = SHAPES[each.tensor]
            whole = stack.reshape(3, *shape)
            vectors = whole if each.need.axis == -1 else whole.transpose(0, 2, 1)
        expected = np.einsum("avn,bvn->vab", vectors, vectors).ravel()
        np.testing.assert_allclose(fact["gram"], expected, rtol=1e-9, atol=1e-9)


def small(folder: Path) -> list[Pair]:
    """A base and two fine-tunes."""
    return pairs_of(small_family(folder))


def learn(pairs: list[Pair], wanted: list[WantedGroup], shelf: Shelf | None, **more: Any) -> Knowledge:
    """`gather` with a fresh meter; what was announced is what is read."""
    meter = Meter()
    cost = survey_groups(pairs, wanted, shelf).cost(MEMORY, 2)
    found = gather(survey_groups(pairs, wanted, shelf), meter, MEMORY, 2, **more)
    assert list(found.group_facts) == wanted
    assert found.index_bytes == meter.spent().bytes[Purpose.INDEX] == cost
    assert sum(meter.spent().bytes.values()) == found.index_bytes
    return found


def bytes_of(pairs: list[Pair], name: str) -> int:
    """Of a tensor of the base and of every expert."""
    return sum(len(each.tensors[name].extent) for each in (pairs[0].base, *(pair.expert for pair in pairs)))


def file_of(pairs: list[Pair], shelf: Shelf) -> Path:
    """The file of all experts together."""
    return group_path(shelf.folder, Group(pairs[0].base, tuple(pair.expert for pair in pairs)))


def flip(models: list[Path], number: int) -> None:
    """Change one bit of the last element of `up`; size and time of modification stay."""
    file = models[number] / "model.safetensors"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    content = bytearray(file.read_bytes())
    content[open_checkpoint(str(models[number]), Meter()).tensors["up"].extent.stop - 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=times)


EVERY = [
    WantedGroup(pairs, name, need)
    for name in ("embed", "up")
    for pairs, need in (
        ((0, 1), GramNeed()), ((0, 1), VectorGramNeed(0)), ((0, 1), VectorGramNeed(-1)), ((1, 0), GramNeed()),
        ((0, 1), VarianceMaskNeed(0.3)), ((0, 1), VarianceMaskNeed(1.0)), ((0, 1), OverlapNeed(1e-4)),
        ((0,), ImportanceNeed(24)), ((1,), ImportanceNeed(24)),
    )
]  # fmt: skip


def test_facts_are_kept(tmp_path: Path) -> None:
    """The second time nothing is read, forbidden or not; bits, types and files are the first time's."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    alone = learn(pairs, EVERY, None)
    assert (alone.built, alone.reused) == ((), ())
    first = learn(pairs, EVERY, shelf)
    assert repr(first.group_facts) == repr(alone.group_facts)
    assert (len(first.built), first.reused) == (4, ())
    for more in ({}, {"allow_reads": False}):
        again = learn(pairs, EVERY, shelf, **more)
        assert repr(again.group_facts) == repr(first.group_facts)
        assert (again.index_bytes, again.built, again.reused) == (0, (), first.built)
    assert not list(shelf.folder.glob(".*"))


def test_only_what_is_missing_is_read(tmp_path: Path) -> None:
    """A fact more of tensors that are known costs those; what was there is kept beside it."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    one = [WantedGroup((0, 1), "up", GramNeed())]
    two = [*one, WantedGroup((0, 1), "up", OverlapNeed(0.0)), WantedGroup((0, 1), "down", GramNeed())]
    assert learn(pairs, one, shelf).index_bytes == bytes_of(pairs, "up")
    assert learn(pairs, two, shelf).index_bytes == bytes_of(pairs, "up") + bytes_of(pairs, "down")
    assert learn(pairs, two, shelf).index_bytes == 0
    other_way = [WantedGroup((1, 0), "up", GramNeed())]
    assert learn(pairs, other_way, shelf).index_bytes == bytes_of(pairs, "up")


def test_tensors_of_one_name_and_many(tmp_path: Path) -> None:
    """Facts know no grid and no output names: two outputs of the same tensors are answered at once."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    twice = [replace(p, tensors=(*p.tensors, replace(p.tensors[1], name="again", block=7))) for p in pairs]
    wanted = [WantedGroup((0, 1), name, GramNeed()) for name in (pairs[0].tensors[1].name, "again")]
    found = learn(twice, wanted, shelf)
    assert found.index_bytes == bytes_of(pairs, pairs[0].tensors[1].name)
    assert found.group_facts[wanted[0]] == found.group_facts[wanted[1]]
    assert learn(pairs, wanted[:1], shelf).index_bytes == 0


def test_touched_files_are_hashed_and_the_facts_reused(tmp_path: Path) -> None:
    """A copied model costs one pass over its tensors that are asked for; then nothing again."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    wanted = [WantedGroup((0, 1), name, need) for name in ("up", "embed") for need in (GramNeed(), OverlapNeed(0.0))]
    first = learn(pairs_of(models), wanted, shelf)
    os.utime(models[2] / "model.safetensors", ns=(5, 5))
    pairs = pairs_of(models)
    with pytest.raises(UsageError, match="--no-index-reads"):
        gather(survey_groups(pairs, wanted, shelf), Meter(), MEMORY, 2, None, False)
    told: list[tuple[str, int, int]] = []
    found = learn(pairs, wanted, shelf, progress=lambda *each: told.append(each))
    assert found.index_bytes == sum(len(pairs[1].expert.tensors[name].extent) for name in ("up", "embed"))
    assert {stage for stage, *_ in told} == {"check facts"}
    assert told[-1][1] == told[-1][2] == found.index_bytes
    assert repr(found.group_facts) == repr(first.group_facts)
    assert (found.built, found.reused) == ((), first.built)
    assert learn(pairs, wanted, shelf, allow_reads=False).index_bytes == 0
    os.utime(models[0] / "model.safetensors", ns=(5, 5))
    # What is not asked for is not hashed, and goes.
    assert learn(pairs_of(models), wanted[:1], shelf).index_bytes == len(pairs[0].base.tensors["up"].extent)
    assert learn(pairs_of(models), wanted[:2], shelf).index_bytes == bytes_of(pairs, "up")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_facts_of_a_changed_model_are_computed_anew(tmp_path: Path, number: int) -> None:
    """One flipped bit in the base or in an expert, size and time as before: no fact from before is used."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    wanted = [WantedGroup((0, 1), name, GramNeed()) for name in ("up", "embed")]
    first = learn(pairs_of(models), wanted, shelf)
    flip(models, number)
    pairs = pairs_of(models)
    found = gather(survey_groups(pairs, wanted, shelf), Meter(), MEMORY, 2)
    touched = pairs[0].base if number == 0 else pairs[number - 1].expert
    hashed = sum(len(touched.tensors[name].extent) for name in ("up", "embed"))
    assert found.index_bytes == hashed + bytes_of(pairs, "up")
    assert found.group_facts[wanted[0]] != first.group_facts[wanted[0]]
    assert found.group_facts[wanted[1]] == first.group_facts[wanted[1]]
    assert found.group_facts == learn(pairs, wanted, None).group_facts
    assert learn(pairs, wanted, shelf).group_facts == found.group_facts


def test_a_changed_model_of_which_other_facts_are_asked(tmp_path: Path) -> None:
    """What the file held of tensors not asked for does not survive beside new facts of the changed model."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    one, other = ([WantedGroup((0, 1), name, GramNeed())] for name in ("up", "embed"))
    first = learn(pairs_of(models), one, shelf)
    flip(models, 1)
    learn(pairs_of(models), other, shelf)
    assert learn(pairs_of(models), one, shelf).group_facts != first.group_facts


def test_a_damaged_file_is_made_anew_and_said(tmp_path: Path) -> None:
    """A truncated file on the shelf costs the reading, with a note that names it; then it is whole again."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    wanted = [WantedGroup((0, 1), "up", GramNeed())]
    first = learn(pairs, wanted, shelf)
    path = file_of(pairs, shelf)
    path.write_bytes(path.read_bytes()[:-1])
    found = learn(pairs, wanted, shelf)
    assert found.built == (str(path),)
    assert len(found.notes) == 1
    assert str(path) in found.notes[0]
    assert found.group_facts == first.group_facts
    again = learn(pairs, wanted, shelf)
    assert (again.index_bytes, again.notes) == (0, ())


def test_reading_can_be_forbidden(tmp_path: Path) -> None:
    """`--no-index-reads` names what would have been read, and nothing is."""
    pairs, meter = small(tmp_path), Meter()
    with pytest.raises(UsageError, match=r"first GramNeed\(\) of up; .*--no-index-reads"):
        gather(survey_groups(pairs, [WantedGroup((0, 1), "up", GramNeed())], None), meter, MEMORY, 2, None, False)
    assert meter.spent().bytes[Purpose.INDEX] == 0


def test_a_model_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """The run stops and names the file; nothing is kept."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    file = models[1] / "model.safetensors"
    pairs = pairs_of(models)
    with pytest.raises(SourceError, match=r"expert1/model\.safetensors: changed while"):
        gather(survey_groups(pairs, EVERY, shelf), Meter(), MEMORY, 2, lambda *_: os.utime(file, ns=(1, 1)))
    assert left_on(shelf) == []


class Interrupted(BaseException):
    """As KeyboardInterrupt, but not pytest's."""


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("calls", [1, 20, 36])
def test_an_interrupted_run_leaves_nothing_half_written(tmp_path: Path, threads: int, calls: int) -> None:
    """Whenever it is stopped, no file is there, no thread goes on, and the next run does it all."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    left = calls

    def interrupt(*_: object) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Interrupted

    with pytest.raises(Interrupted):
        gather(survey_groups(pairs, EVERY, shelf), Meter(), MEMORY, threads, interrupt)
    assert left_on(shelf) == []
    assert not [each for each in threading.enumerate() if each.name.startswith("index")]
    assert learn(pairs, EVERY, shelf).group_facts == learn(pairs, EVERY, None).group_facts


def left_on(shelf: Shelf) -> list[str]:
    """All but locks."""
    return [path.name for path in shelf.folder.iterdir() if path.suffix != ".lock"] if shelf.folder.exists() else []


def test_the_leavings_of_a_killed_run_do_no_harm(tmp_path: Path) -> None:
    """A half-written file beside is overwritten by the next run and gone."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    shelf.folder.mkdir()
    (shelf.folder / f".{file_of(pairs, shelf).name}.part").write_bytes(b"half")
    wanted = [WantedGroup((0, 1), "up", GramNeed())]
    assert learn(pairs, wanted, shelf).built
    assert left_on(shelf) == [file_of(pairs, shelf).name]


def test_a_second_run_waits_and_finds_the_facts(tmp_path: Path) -> None:
    """Two runs at once read the family once between them."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    found: list[Knowledge] = []
    started = threading.Barrier(2)

    def run() -> None:
        pairs = pairs_of(models)
        started.wait()
        found.append(gather(survey_groups(pairs, EVERY, shelf), Meter(), MEMORY, 1))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.index_bytes for each in found) == [0, max(each.index_bytes for each in found)]
    assert found[0].group_facts == found[1].group_facts


def test_progress_counts_to_the_announced_total(tmp_path: Path) -> None:
    """Bytes done grow to the total, which is what was announced."""
    pairs = small(tmp_path)
    told: list[tuple[str, int, int]] = []
    found = learn(pairs, EVERY, None, progress=lambda stage, done, total: told.append((stage, done, total)))
    assert {(stage, total) for stage, _, total in told} == {("facts", found.index_bytes)}
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1] == found.index_bytes


def test_nothing_wanted(tmp_path: Path) -> None:
    """Nothing is read and no folder is made; nor is one where all is known."""
    pairs, shelf = small(tmp_path), Shelf(tmp_path / "shelf")
    assert learn(pairs, [], shelf).index_bytes == 0
    assert not shelf.folder.exists()


def test_values_without_inner_products_are_named(tmp_path: Path) -> None:
    """NaN in a tensor stops the run before anything is merged."""
    values = np.ones((4, 4), np.float32)
    write_checkpoint(tmp_path / "base", {"w": ("F32", values)}, {})
    write_checkpoint(tmp_path / "odd", {"w": ("F32", np.full((4, 4), np.nan))}, {})
    recipe = tmp_path / "r.yml"
    recipe.write_text(
        json.dumps(
            {
                "merge_method": "slerp",
                "base_model": str(tmp_path / "base"),
                "models": [{"model": str(tmp_path / "odd")}],
                "parameters": {"t": 0.5},
            }
        )
    )
    with pytest.raises(MergePipeError, match="w: holds NaN") as caught:
        api.merge(recipe, tmp_path / "out", index=api.IndexOptions(tmp_path / "index"))
    assert isinstance(caught.value, NonFiniteError)
