"""The access plan: what is chosen, what is expected, and a digest over all that execution depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.leaves import fold_blocks
from mergepipe.errors import FormatError, NonFiniteError, RecipeError
from mergepipe.plan.access import (
    ALL,
    NONE,
    AccessPlan,
    TensorAccess,
    read_set,
    resolve_tensor,
    tensor_spec,
    wanted_facts,
)
from mergepipe.plan.bounds import EXACT
from mergepipe.plan.budget import Budget
from mergepipe.plan.cost import block_costs, grid_of
from mergepipe.plan.encode import decode_plan, encode_plan, plan_from
from mergepipe.plan.family import FamilyRules, VocabularyRule
from mergepipe.plan.select import Policy
from mergepipe.testing.checkpoints import fine_tune, llama_config, tiny_llama, typed, write_checkpoint, write_family
from mergepipe.testing.plans import Corridor, corridor

BLOCK = 64


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Corridor:
    """Task arithmetic over three bf16 experts, in blocks of 64 bytes."""
    family = write_family(tmp_path_factory.mktemp("family"))
    return corridor(family.base, family.experts, block_bytes=BLOCK)


@pytest.fixture(scope="module")
def ties(tmp_path_factory: pytest.TempPathFactory) -> Corridor:
    """Ties with trimming, which needs facts, over two experts."""
    family = write_family(tmp_path_factory.mktemp("ties"), experts=2)
    models = [{"weight": 0.5, "density": 0.4}, {"weight": 0.25, "density": 0.7}]
    return corridor(family.base, family.experts, "ties", models=models, block_bytes=BLOCK)


# --- choosing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [False, True])
def test_a_full_read_is_everything_and_certified_exact(way: Corridor, indexed: bool) -> None:
    """Without a cap: no selection, bound zero; with an index at hand the bytes it describes are expected."""
    plan = way.choose(None, indexed=indexed)
    merged = [n for n, tensor in enumerate(way.logical.tensors) if tensor.experts]
    assert all(set(plan.tensors[n].reads) == {ALL} for n in merged)
    assert plan.bound == EXACT
    assert plan.planned_bytes == plan.full_bytes
    assert all(bool(text) == indexed for n in merged for text in plan.tensors[n].expected)
    assert all(bool(plan.tensors[n].base_expected) == indexed for n in merged)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("budget", ["0%", "3%", "30%", "99%", "1000", "7blocks"])
def test_a_capped_plan_keeps_its_budget(way: Corridor, policy: Policy, budget: str) -> None:
    """The planned bytes are the costs of the blocks chosen; within the cap, and within the count."""
    plan = way.choose(budget, policy)
    spent = count = 0
    for number, tensor in enumerate(way.logical.tensors):
        grid = grid_of(tensor, BLOCK)
        for place, expert in enumerate(tensor.experts):
            read = read_set(plan.tensors[number], place, grid.count)
            spent += int(block_costs(expert, grid)[read].sum())
            count += int(read.sum())
    assert spent == plan.planned_bytes
    assert plan.budget.cap is not None
    assert spent <= plan.budget.cap
    assert plan.budget.blocks is None or count <= plan.budget.blocks
    assert plan.policy == policy.value
    assert plan.bound.kind == "certified"


def test_zero_deltas_cost_nothing(way: Corridor) -> None:
    """Tensors that a fine-tune did not touch are not read; reading all others errs nothing."""
    plan = way.choose("99%")
    indices = way.indices()
    for number, tensor in enumerate(way.logical.tensors):
        for place, expert in enumerate(tensor.experts):
            facts = indices[expert.input - 1].blocks[tensor.base]
            read = read_set(plan.tensors[number], place, facts.l2.size)
            assert not (read & (facts.nonzero == 0)).any()
            if plan.bound.l2 == 0:
                assert (read == (facts.nonzero > 0)).all()
    assert plan.planned_bytes < plan.full_bytes


def test_a_larger_budget_has_a_smaller_bound(way: Corridor) -> None:
    """For an additive method under `norm`."""
    bounds = [way.choose(f"{percent}%").bound.l2 for percent in (0, 10, 30, 60, 99)]
    assert all(bound is not None for bound in bounds)
    assert bounds == sorted(bounds, key=lambda value: -(value or 0.0))


def test_expected_digests_are_of_the_blocks_that_are_read(way: Corridor) -> None:
    """A fold over numbers and digests of exactly the blocks read; of the base, of all its blocks."""
    plan, indices = way.choose("30%"), way.indices()
    for number, tensor in enumerate(way.logical.tensors):
        access = plan.tensors[number]
        for place, expert in enumerate(tensor.experts):
            digests = indices[expert.input - 1].blocks[tensor.base].digest
            read = np.flatnonzero(read_set(access, place, digests.size)).tolist()
            assert access.expected[place] == fold_blocks(read, [int(digests[n]) for n in read])
        base = [int(digest) for digest in indices[0].base[tensor.base].digest]
        assert access.base_expected == fold_blocks(range(len(base)), base)


def test_blocks_beyond_an_experts_rows_cost_nothing(tmp_path: Path) -> None:
    """With fewer vocabulary rows in the expert, only the common rows are paid for and expected."""
    base = tiny_llama(1, vocab=32)
    expert = fine_tune(tiny_llama(1, vocab=32), 5, untouched=0.0)
    expert["model.norm.weight"] = base["model.norm.weight"]
    expert |= {name: expert[name][:20] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    write_checkpoint(tmp_path / "base", typed(base, "BF16"), llama_config(vocab=32))
    write_checkpoint(tmp_path / "expert", typed(expert, "BF16"), llama_config(vocab=20))
    rules = FamilyRules(vocabulary=VocabularyRule.COMMON)
    way = corridor(tmp_path / "base", [tmp_path / "expert"], rules=rules, block_bytes=BLOCK)
    number = next(n for n, tensor in enumerate(way.logical.tensors) if tensor.name == "lm_head.weight")
    assert grid_of(way.logical.tensors[number], BLOCK).count == 8
    plan = way.choose("99.99%")
    assert read_set(plan.tensors[number], 0, 8).tolist() == [True] * 5 + [False] * 3
    assert plan.bound.l2 == 0
    full = way.choose(None, indexed=True)
    assert full.tensors[number].reads == (ALL,)
    assert full.tensors[number].expected == plan.tensors[number].expected
    assert full.full_bytes == sum(array.size for array in expert.values()) * 2


def test_empty_tensors_need_no_facts(tmp_path: Path) -> None:
    """Zero-size and 0-d tensors go through every kind of plan."""
    base: dict[str, Any] = {"w": np.ones((4, 4), np.float32), "nothing": np.zeros((0, 4)), "scale": np.array(2.0)}
    write_checkpoint(tmp_path / "base", typed(base, "F32"))
    write_checkpoint(tmp_path / "expert", typed({**base, "scale": np.array(3.0)}, "F32"))
    for method, models in (("task_arithmetic", [{"weight": 1.0}]), ("ties", [{"weight": 1.0, "density": 0.5}])):
        way = corridor(tmp_path / "base", [tmp_path / "expert"], method, models=models, block_bytes=BLOCK)
        for budget in (None, "50%", "0%"):
            plan = way.choose(budget, indexed=True)
            number = next(n for n, tensor in enumerate(way.logical.tensors) if tensor.name == "nothing")
            assert read_set(plan.tensors[number], 0, 0).size == 0
            assert decode_plan(encode_plan(plan, ""), "x")[0] == plan


def nonfinite(tmp_path: Path, where: str) -> Corridor:
    """A family in which one value of `where` is NaN."""
    base = tiny_llama(1)
    tensors = {"base": base, "expert": fine_tune(base, 2)}
    tensors[where] = {name: array.copy() for name, array in tensors[where].items()}
    tensors[where]["model.layers.1.mlp.up_proj.weight"][3, 2] = np.nan
    for name, values in tensors.items():
        write_checkpoint(tmp_path / name, typed(values, "F32"), llama_config())
    return corridor(tmp_path / "base", [tmp_path / "expert"], block_bytes=BLOCK)


@pytest.mark.parametrize("where", ["base", "expert"])
@pytest.mark.parametrize("budget", [None, "20%"])
def test_values_the_index_knows_to_be_non_finite_stop_the_plan(tmp_path: Path, where: str, budget: str | None) -> None:
    """Model, tensor and count are named, and what would go on; then there is no bound, and it is said why."""
    way = nonfinite(tmp_path, where)
    with pytest.raises(NonFiniteError, match=rf"{where}: model\.layers\.1\.mlp\.up_proj\.weight has 1 non-finite"):
        way.choose(budget, indexed=True)
    plan = way.choose("20%", allow_nonfinite=True)
    assert plan.allow_nonfinite
    assert plan.bound.kind == "none"
    assert plan.bound.l2 is None
    assert "non-finite inputs" in str(plan.bound.reason)


def test_facts_are_wanted_where_the_method_needs_them_and_inlined(ties: Corridor) -> None:
    """Replay needs no index: the plan's own facts give the coefficients."""
    wanted = wanted_facts(ties.logical, ties.operator)
    merged = [tensor for tensor in ties.logical.tensors if tensor.experts]
    assert [(each.pair, each.tensor) for each in wanted] == [(e, t.base) for t in merged for e in (0, 1)]
    facts = ties.facts()
    plan = ties.choose("40%")
    for number, tensor in enumerate(ties.logical.tensors):
        inlined = plan.tensors[number].facts
        assert [dict(fact) for (fact,) in inlined] == [
            dict(facts[each]) for each in wanted if each.tensor == tensor.base
        ]
        spec = tensor_spec(ties.logical, tensor)
        assert resolve_tensor(plan, ties.operator, number) == ties.operator.resolve(spec, inlined)


def test_a_method_without_needs_wants_nothing(way: Corridor) -> None:
    """And its facts are empty, one tuple an expert."""
    assert wanted_facts(way.logical, way.operator) == []
    assert all(access.facts == ((), (), ()) for access in way.choose().tensors)


def test_complaints_about_parameters_come_before_any_read(tmp_path: Path) -> None:
    """Weights that cannot be normalised stop the plan, full read or not."""
    family = write_family(tmp_path, experts=2)
    models = [{"weight": 1.0}, {"weight": -1.0}]
    way = corridor(family.base, family.experts, "linear", models=models, block_bytes=BLOCK)
    for budget in (None, "10%"):
        with pytest.raises(RecipeError, match="cannot be normalized"):
            way.choose(budget)


# --- bitmaps ----------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=70))
def test_bitmaps_are_least_significant_bit_first(bits: list[bool]) -> None:
    """A bitmap written by hand is read as meant, whatever follows in its last byte."""
    number = sum(1 << place for place, bit in enumerate(bits) if bit)
    text = number.to_bytes(-(-len(bits) // 8), "little").hex()
    access = TensorAccess(1, (text, ALL, NONE), ((), (), ()), ("", "", ""))
    assert read_set(access, 0, len(bits)).tolist() == bits
    assert read_set(access, 1, len(bits)).tolist() == [True] * len(bits)
    assert read_set(access, 2, len(bits)).tolist() == [False] * len(bits)


@pytest.mark.parametrize("text", ["", "ff", "zz", "f"])
def test_a_damaged_bitmap_is_refused(text: str) -> None:
    """Too short for the blocks, or no hexadecimal at all."""
    with pytest.raises(FormatError, match="damaged"):
        read_set(TensorAccess(1, (text,), ((),), ("",)), 0, 9)


@pytest.mark.parametrize("budget", ["0%", "13%", "50%", "99%"])
def test_chosen_blocks_come_back_from_the_plans_text(way: Corridor, budget: str) -> None:
    """Encoding a plan and reading it back gives the same read sets, facts, bound and digest."""
    plan = way.choose(budget)
    again, recipe = decode_plan(encode_plan(plan, "recipe: text"), "plan.json")
    assert again == plan
    assert again.digest == plan.digest
    assert recipe == "recipe: text"


# --- identity ---------------------------------------------------------------------------------------


def _tensor(plan: AccessPlan, **changes: Any) -> AccessPlan:
    return replace(plan, tensors=(replace(plan.tensors[0], **changes), *plan.tensors[1:]))


def _merge(plan: AccessPlan, **changes: Any) -> AccessPlan:
    tensors = plan.logical.tensors
    return replace(plan, logical=replace(plan.logical, tensors=(replace(tensors[0], **changes), *tensors[1:])))


def _expert(plan: AccessPlan, **changes: Any) -> AccessPlan:
    first = plan.logical.tensors[0]
    return _merge(plan, experts=(replace(first.experts[0], **changes), *first.experts[1:]))


def _inputs(plan: AccessPlan, **changes: Any) -> AccessPlan:
    first, *rest = plan.logical.inputs
    return replace(plan, logical=replace(plan.logical, inputs=(replace(first, **changes), *rest)))


CHANGES: dict[str, Callable[[AccessPlan], AccessPlan]] = {
    "budget": lambda plan: replace(plan, budget=Budget("31%", 12345)),
    "policy": lambda plan: replace(plan, policy="random"),
    "grid": lambda plan: replace(plan, block_bytes=128),
    "block": lambda plan: _tensor(plan, block=plan.tensors[0].block * 2),
    "reads": lambda plan: _tensor(plan, reads=("f0" * 8, *plan.tensors[0].reads[1:])),
    "facts": lambda plan: _tensor(plan, facts=(({"threshold": 0.125, "cut": 3},), *plan.tensors[0].facts[1:])),
    "cut": lambda plan: _tensor(plan, facts=(({"threshold": 0.25, "cut": 4},), *plan.tensors[0].facts[1:])),
    "expected": lambda plan: _tensor(plan, expected=("00", *plan.tensors[0].expected[1:])),
    "base_expected": lambda plan: _tensor(plan, base_expected="00"),
    "allow_nonfinite": lambda plan: replace(plan, allow_nonfinite=True),
    "seed": lambda plan: replace(plan, logical=replace(plan.logical, seed=1)),
    "method": lambda plan: replace(plan, logical=replace(plan.logical, method="ties@paper")),
    "weight": lambda plan: _expert(plan, parameters={"weight": 0.51, "density": 0.4}),
    "elements": lambda plan: _expert(plan, elements=8),
    "expert name": lambda plan: _expert(plan, name="other"),
    "expert dtype": lambda plan: _expert(plan, dtype="F32"),
    "parameters": lambda plan: _merge(plan, parameters={**plan.logical.tensors[0].parameters, "lambda": 0.5}),
    "reference": lambda plan: _merge(plan, reference={"weight": 1.0}),
    "out_dtype": lambda plan: _merge(plan, out_dtype="F32"),
    "shape": lambda plan: _merge(plan, shape=(1,)),
    "header": lambda plan: _inputs(plan, header_digest="sha256:1"),
    "files": lambda plan: replace(plan, logical=replace(plan.logical, files=())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_everything_that_execution_depends_on_is_in_the_digest(ties: Corridor, change: str) -> None:
    """One change, another digest."""
    plan = ties.choose("40%")
    changed = CHANGES[change](plan)
    assert changed != plan
    assert changed.digest != plan.digest


def test_all_digests_of_changed_plans_differ(ties: Corridor) -> None:
    """No two of the changes collide."""
    plan = ties.choose("40%")
    digests = [change(plan).digest for change in CHANGES.values()]
    assert len(set(digests)) == len(digests)
    assert all(digest.startswith("sha256:") for digest in digests)


def test_where_inputs_are_and_remarks_are_not_in_the_digest(ties: Corridor) -> None:
    """Models may move, reports may be worded otherwise."""
    plan = ties.choose("40%")
    moved = tuple(replace(each, url=f"/elsewhere/{each.position}") for each in plan.logical.inputs)
    changed = replace(plan, logical=replace(plan.logical, inputs=moved, notes=("a remark",)))
    assert changed.digest == plan.digest


def test_choosing_twice_gives_the_same_digest(ties: Corridor) -> None:
    """A plan is a pure function of recipe, facts and budget."""
    for policy in Policy:
        assert ties.choose("25%", policy).digest == ties.choose("25%", policy).digest


def test_a_plan_can_be_made_from_its_plain_values(ties: Corridor) -> None:
    """As manifests keep it: without the places of inputs, of equal digest."""
    plan = ties.choose("40%")
    assert plan_from(plan.identity, "manifest").digest == plan.digest
