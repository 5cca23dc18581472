"""A budget that headers, recipe and tokenizers show to be too small is refused before a weight is read for anything."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mergepipe import api
from mergepipe.errors import BudgetInfeasible
from mergepipe.operators.contract import AccessClass
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from tests.laws.test_every_method import CASES, Case, recipe
from tests.laws.vocabularies import Tongues
from tests.laws.world import World

Spending = Counter[Purpose]
NO_WEIGHTS = {Purpose.HEADER, Purpose.SIDECAR}


@pytest.fixture
def spending(monkeypatch: pytest.MonkeyPatch) -> Spending:
    """Bytes charged from here on, whatever the meter."""
    spent: Spending = Counter()
    charge = Meter.charge

    def counted(meter: Meter, purpose: Purpose, count: int, *rest: Any) -> None:
        spent[purpose] += count
        charge(meter, purpose, count, *rest)

    monkeypatch.setattr(Meter, "charge", counted)
    return spent


@pytest.fixture(scope="module")
def tongues(tmp_path_factory: pytest.TempPathFactory) -> Tongues:
    """Models of other tokenizers."""
    return Tongues.make(tmp_path_factory.mktemp("tongues"))


@pytest.mark.parametrize("multiple", [None, 16])
@pytest.mark.parametrize("method", ["ties", "karcher"])
def test_rows_by_token(tongues: Tongues, spending: Spending, method: str, multiple: int | None) -> None:
    """Assembled tensors are taken whole; neither facts nor means for padding rows are read for a refusal."""
    tokenizer = {"source": "union"} if multiple is None else {"source": "union", "pad_to_multiple_of": multiple}
    parameters = {"density": 0.5} if method == "ties" else {}
    path = tongues.recipe(method, ("expert1", "expert3"), (1.0, 1.0), tokenizer=tokenizer, parameters=parameters)
    for budget in ("10%", "64", "3blocks"):
        with pytest.raises(BudgetInfeasible, match="takes whole"):
            tongues.merge(path, budget)
    assert set(spending) <= NO_WEIGHTS
    assert not tongues.index.shelf.folder.exists()


@pytest.mark.parametrize("case", [case for case in CASES if case.access is AccessClass.COUPLED], ids=str)
def test_methods_that_read_everything(world: World, spending: Spending, case: Case) -> None:
    """No budget below a full read is theirs; as many of the largest block as make up its bytes are not all blocks."""
    path, index = recipe(world, case), api.IndexOptions(world.fresh())
    for budget in ("40%", "1KiB", "3blocks"):
        with pytest.raises(BudgetInfeasible, match="cannot leave blocks out") as refused:
            api.plan(path, world.options(budget), index)
    embedding = 64 * 16 * 2
    blocks = -(-refused.value.needed // embedding)
    with pytest.raises(BudgetInfeasible, match=f"a budget of {blocks} blocks"):
        api.plan(path, api.PlanOptions(budget=f"{blocks}blocks"), index)
    assert set(spending) <= NO_WEIGHTS


def test_slices_taken_whole(tmp_path: Path, spending: Spending) -> None:
    """A slice on an expert as its base reads that whole; the slice beside it would need an index."""
    own = World.make(tmp_path, experts=2, hidden=16, vocab=64)
    one, two = map(str, own.experts)
    document = {
        "merge_method": "task_arithmetic",
        "base_model": str(own.base),
        "parameters": {"weight": 0.5},
        "slices": [
            {"sources": [{"model": str(own.base), "layer_range": [0, 1]}, {"model": one, "layer_range": [0, 1]}]},
            {
                "base_model": two,
                "sources": [{"model": two, "layer_range": [1, 2]}, {"model": one, "layer_range": [1, 2]}],
            },
        ],
    }
    path = tmp_path / "slices.yml"
    path.write_text(json.dumps(document))
    with pytest.raises(BudgetInfeasible, match="takes whole"):
        api.plan(path, own.options("1%"), own.index)
    assert set(spending) <= NO_WEIGHTS


def test_a_sweep_asks_for_all_its_budgets_first(tongues: Tongues, spending: Spending) -> None:
    """The largest budget is not planned, nor the full merge made, where the smallest cannot be."""
    path = tongues.recipe("ties", ("expert1", "expert3"), (1.0, 1.0), tokenizer_source="union")
    options = api.PlanOptions(block_bytes=64)
    with pytest.raises(BudgetInfeasible):
        api.sweep(path, ["90%", "1%"], options, tongues.index)
    with pytest.raises(BudgetInfeasible):
        api.measured_sweep(path, ["90%", "1%"], tongues.folder / "sweep", options, tongues.index)
    assert set(spending) <= NO_WEIGHTS
