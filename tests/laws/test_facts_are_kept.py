"""What a method must know of several models together is read for once: a second run reads nothing for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mergepipe import api
from mergepipe.errors import UsageError
from mergepipe.operators.contract import AccessClass
from tests.laws.test_every_method import CASES, Case, recipe
from tests.laws.vocabularies import Tongues
from tests.laws.world import World, published

# The methods whose facts are of several models together.
JOINT = (
    "slerp", "nuslerp", "multislerp", "karcher", "model_stock", "sce", "ram", "ramplus_tl", "arcee_fusion",
)  # fmt: skip


class Notes(api.Silent):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    @property
    def announced(self) -> list[str]:
        """Those that say what will be read."""
        return [text for text in self.texts if "(INDEX)" in text]


@pytest.mark.parametrize("case", [case for case in CASES if case.method in JOINT], ids=str)
def test_a_second_run_reads_no_index_bytes(world: World, case: Case) -> None:
    """Even where reading is forbidden; its plan and output are the first run's, and nothing is announced."""
    path, index = recipe(world, case), world.fresh()
    for budget in (None,) if case.access is AccessClass.COUPLED else (None, "40%"):
        options = world.options(budget)
        outs, notes, results = [], [], []
        for reads in (True, False):
            outs.append(world.fresh())
            notes.append(Notes())
            results.append(
                api.merge(path, outs[-1], options, api.IndexOptions(index, reads), api.Limits(), False, notes[-1])
            )
        first, second = results
        assert second["index_bytes"] == 0
        assert notes[1].announced == []
        assert (first["index_bytes"] > 0) == bool(notes[0].announced)
        assert first["plan_digest"] == second["plan_digest"]
        assert published(outs[0]) == published(outs[1])


@pytest.mark.parametrize("method", ["sce", "karcher"])
def test_what_is_announced_is_what_is_missing(world: World, method: str) -> None:
    """A run says that it reads for facts only if it does; another run's facts of the same models do not help it."""
    case = next(case for case in CASES if case.method == method)
    path, index = recipe(world, case), api.IndexOptions(world.fresh())
    first = Notes()
    planned = api.plan(path, world.options(), index, api.Limits(), first)
    assert planned.index_bytes > 0
    assert "facts of whole tensors are needed" in first.announced[0]
    again = Notes()
    assert api.plan(path, world.options(), index, api.Limits(), again).index_bytes == 0
    assert again.announced == []
    fewer = Case(case.method, case.merge, case.model, models=2)
    with pytest.raises(UsageError, match="--no-index-reads"):
        api.plan(recipe(world, fewer), world.options(), api.IndexOptions(index.folder, reads=False))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_index_of_a_recipe_is_all_its_merges_need(world: World, case: Case) -> None:
    """With a budget or without; made again it reads nothing; the plan is the one that reads for itself."""
    path, folder = recipe(world, case), world.fresh()
    made = api.build_index_of(path, world.options(), api.IndexOptions(folder))
    assert made.index_bytes > 0 or case.method == "passthrough"
    again = api.build_index_of(path, world.options(), api.IndexOptions(folder))
    assert (again.index_bytes, again.built) == (0, ())
    assert set(again.reused) == set(made.built)
    for budget in (None,) if case.access is AccessClass.COUPLED else (None, "40%"):
        notes = Notes()
        kept = api.plan(path, world.options(budget), api.IndexOptions(folder, reads=False), api.Limits(), notes)
        assert kept.index_bytes == 0
        assert notes.announced == []
        own = api.plan(path, world.options(budget), api.IndexOptions(world.fresh()))
        assert kept.plan.digest == own.plan.digest


def test_an_index_of_a_recipe_by_token_says_what_it_cannot_keep(tmp_path: Path) -> None:
    """Where the method needs facts of such tensors; where it needs none, the index is all a merge needs."""
    tongues = Tongues.make(tmp_path)
    options = api.PlanOptions(budget="80%", block_bytes=64)
    for method, silent in (("task_arithmetic", True), ("karcher", False)):
        path = tongues.recipe(method, ("expert1", "expert3"), (1.0, 1.0), tokenizer_source="union")
        notes = Notes()
        api.build_index_of(path, options, tongues.index, api.Limits(), notes)
        assert any("never kept" in text for text in notes.texts) is not silent
        if silent:
            assert api.plan(path, options, api.IndexOptions(tongues.index.folder, reads=False)).index_bytes == 0


def test_means_for_padding_rows_are_announced(tmp_path: Path) -> None:
    """They are read for in every run, which says so for each tensor."""
    tongues = Tongues.make(tmp_path)
    tokenizer = {"source": "union", "pad_to_multiple_of": 16}
    path = tongues.recipe("task_arithmetic", ("expert1", "expert3"), (1.0, 1.0), tokenizer=tokenizer)
    for _ in range(2):
        notes = Notes()
        planned = api.plan(path, api.PlanOptions(block_bytes=64), tongues.index, api.Limits(), notes)
        assert planned.index_bytes > 0
        assert [text.partition(":")[0] for text in notes.announced] == ["model.embed_tokens.weight", "lm_head.weight"]


@pytest.mark.parametrize("method", ["ties", "karcher"])
def test_facts_of_rows_by_token_are_not_kept(tmp_path: Path, method: str) -> None:
    """Every run says so, and reads for nothing else from the second on; without reads, the error says what helps."""
    tongues = Tongues.make(tmp_path)
    parameters = {"density": 0.5} if method == "ties" else {}
    path = tongues.recipe(method, ("expert1", "expert3"), (1.0, 1.0), tokenizer_source="union", parameters=parameters)
    options = api.PlanOptions(budget="80%", block_bytes=64)
    first, second = Notes(), Notes()
    api.plan(path, options, tongues.index, api.Limits(), first)
    planned = api.plan(path, options, tongues.index, api.Limits(), second)
    assert ["no index of these models yet" in text for text in first.announced] == [True, False]
    assert first.announced[1:] == second.announced
    assert "lm_head.weight, model.embed_tokens.weight, whose rows are put in order by token" in second.announced[0]
    assert planned.index_bytes > 0
    with pytest.raises(UsageError, match="No index helps"):
        api.plan(path, options, api.IndexOptions(tongues.index.folder, reads=False))
    api.save_plan(planned, tmp_path / "plan.json")
    result = api.merge_planned(tmp_path / "plan.json", tmp_path / "out")
    assert result["index_bytes"] == 0


def test_a_changed_expert_is_never_answered_from_before(tmp_path: Path) -> None:
    """With facts kept and one byte of an expert changed since, the merge is the one without any shelf."""
    own = World.make(tmp_path, experts=3, hidden=16, vocab=32)
    path = recipe(own, next(case for case in CASES if case.method == "sce" and case.merge))
    kept = api.IndexOptions(own.fresh())
    before = own.fresh()
    api.merge(path, before, own.options(), kept)
    weights = own.experts[1] / "model.safetensors"
    times = weights.stat().st_atime_ns, weights.stat().st_mtime_ns
    content = bytearray(weights.read_bytes())
    content[-3] ^= 0x20
    weights.write_bytes(content)
    os.utime(weights, ns=times)
    after, plain = own.fresh(), own.fresh()
    result = api.merge(path, after, own.options(), kept)
    api.merge(path, plain, own.options(), api.IndexOptions(own.fresh()))
    assert result["index_bytes"] > 0
    assert published(after) == published(plain)
    assert published(after) != published(before)
