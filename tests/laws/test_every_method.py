"""Every registered method, through the whole program, keeps the promises of the design."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe import api
from mergepipe.errors import BudgetInfeasible
from mergepipe.operators.contract import AccessClass
from mergepipe.operators.registry import names, operator, variants
from mergepipe.plan.access import AccessPlan, read_set, resolve_tensor, tensor_spec
from mergepipe.plan.logical import TensorMerge
from mergepipe.stats.contract import ImportanceNeed
from mergepipe.testing.checkpoints import read_floats
from mergepipe.testing.operators import combine, fact_of, group_fact_of
from tests.laws.world import World, published
from tests.operators.test_methods_doc import at_a_glance


@dataclass(frozen=True)
class Case:
    """One recipe: parameters of the merge and of every model. `models` counts those beside the base."""

    method: str
    merge: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    models: int = 3
    base: bool = True
    variant: str | None = None

    def __str__(self) -> str:
        words = [self.method if self.variant is None else f"{self.method}@{self.variant}"]
        words += [f"{key}={value}" for key, value in {**self.merge, **self.model}.items()]
        return "-".join(words if self.base else [*words, "no-base"])

    @property
    def access(self) -> AccessClass:
        """How the method may be read."""
        return operator(self.method, self.variant).access


WEIGHT = {"weight": 0.6}
SPARSE = {"weight": 0.6, "density": 0.4}
CASES = (
    Case("linear", model=WEIGHT, base=False),
    Case("linear", {"normalize": False}, WEIGHT),
    Case("task_arithmetic", {"lambda": 0.8}, WEIGHT),
    Case("ties", model=SPARSE),
    Case("ties", {"rescale": True, "normalize": False}, SPARSE),
    Case("dare_linear", model=SPARSE),
    Case("dare_linear", model=SPARSE, variant="paper"),
    Case("dare_ties", {"rescale": True}, SPARSE),
    Case("dare_ties", model=SPARSE, variant="paper"),
    Case("della", {"rescale": True}, {**SPARSE, "epsilon": 0.2}),
    Case("della", {"rescale": False}, {**SPARSE, "epsilon": 0.2}),
    Case("della_linear", {"rescale": True}, {**SPARSE, "epsilon": 0.2}),
    Case("breadcrumbs", model={**SPARSE, "gamma": 0.1}),
    Case("breadcrumbs", {"rescale": True}, {**SPARSE, "gamma": 0.1}),
    Case("breadcrumbs_ties", {"rescale": True}, {**SPARSE, "gamma": 0.1}),
    Case("slerp", {"t": 0.3}, models=1),
    Case("nuslerp", model=WEIGHT, models=2),
    Case("nuslerp", {"nuslerp_flatten": False}, WEIGHT, models=2),
    Case("nuslerp", {"nuslerp_flatten": False, "nuslerp_row_wise": True}, WEIGHT, models=2, base=False),
    Case("multislerp", model=WEIGHT),
    Case("multislerp", model=WEIGHT, base=False),
    Case("karcher"),
    Case("model_stock"),
    Case("model_stock", {"filter_wise": True}),
    Case("nearswap", {"t": 0.001}, models=1),
    Case("arcee_fusion", models=1),
    Case("sce", {"select_topk": 0.3}),
    Case("sce"),
    Case("sce", {"select_topk": 0.3}, variant="paper"),
    Case("ram"),
    Case("ramplus_tl"),
    Case("passthrough", {}, {"scale": 0.5}, models=1, base=False),
)


def recipe(world: World, case: Case) -> Path:
    """The case over the world's family, with a float32 output: nothing hides in its rounding."""
    document: dict[str, Any] = {
        "merge_method": case.method,
        "models": [{"model": str(path), "parameters": dict(case.model)} for path in world.experts[: case.models]],
        "parameters": dict(case.merge),
        "out_dtype": "float32",
    }
    if case.base:
        document["base_model"] = str(world.base)
    if case.variant is not None:
        document["variant"] = case.variant
    path = world.fresh().with_suffix(".yml")
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(params=CASES, ids=str, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    """One case after the other."""
    found: Case = request.param
    return found


def test_every_method_and_variant_is_here() -> None:
    """A new operator without a case fails here."""
    tried = {(case.method, case.variant or variants(case.method)[0]) for case in CASES}
    assert {(name, variant) for name in names() for variant in variants(name)} - tried == set()


def test_full_read_is_the_whole_tensor_formula(world: World, case: Case) -> None:
    """Tiles, threads and streamed facts give what the operator gives on whole tensors; facts are the plain ones."""
    out, _ = world.merge(recipe(world, case))
    plan = api.recorded_plan(out)
    method = operator(case.method, case.variant)
    stored = published(out)
    for number, tensor in enumerate(plan.logical.tensors):
        base, deltas = inputs(plan, tensor)
        if tensor.copied:
            continue
        check_facts(plan, number, base, deltas)
        coefficients = resolve_tensor(plan, method, number)
        expected = combine(method, coefficients, base, deltas, [True] * len(deltas))
        assert stored[tensor.name] == expected.astype(np.float32).tobytes(), tensor.name


def test_threads_and_memory_do_not_show(world: World, case: Case) -> None:
    """One thread with little memory, index included, writes what three write with much."""
    path = recipe(world, case)
    out, _ = world.merge(path, limits=api.Limits(workers=3, readers=3))
    small = world.fresh()
    limits = api.Limits(memory=64 << 20, workers=1, readers=1)
    api.merge(path, small, world.options(), api.IndexOptions(world.fresh()), limits)
    assert published(small) == published(out)
    assert api.recorded_plan(small).digest == api.recorded_plan(out).digest


def test_budgets_hold(world: World, case: Case) -> None:
    """Read ≤ budget, error ≤ bound where one is certified, whole blocks as in the full merge, replay equal.

    A method that must read everything says so, and reads nothing.
    """
    path = recipe(world, case)
    if case.access is AccessClass.COUPLED:
        out = world.fresh()
        with pytest.raises(BudgetInfeasible):
            api.merge(path, out, world.options("40%"), world.index)
        assert not out.exists()
        assert at_a_glance()[case.method][1:] == ("no: full read", "–")
        return
    full, _ = world.merge(path)
    part, result = world.merge(path, "40%")
    assert result["expert_bytes"]["read"] <= 0.4 * result["expert_bytes"]["full"]
    assert (result["expert_bytes"]["read"] > 0) == (case.access is not AccessClass.REQUIRED)
    bound = result["bound"]
    assert bound["kind"] in at_a_glance()[case.method][2]
    if bound["kind"] == "certified":
        assert api.distance(full, part) <= bound["l2"] + bound["rounding_l2"]
    else:
        assert (bound["kind"], bound["l2"]) == ("none", None)
        assert bound["reason"]
    assert whole_blocks_differ(part, full) == []
    again = world.fresh()
    api.replay(part, again)
    assert published(again) == published(part)


# Those that mergekit 0.1.4 merged in an order of hashing, and two that are budgeted.
HASHED = ("dare_linear-weight=0.6-density=0.4", "sce", "ram", "multislerp-weight=0.6-no-base")


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in HASHED or case.method == "ties"], ids=str)
def test_pythons_hashing_changes_no_byte(world: World, case: Case) -> None:
    """Nothing goes by the order of a set: the same tensors and plan in processes of unlike hash seeds."""
    path = recipe(world, case)
    budget = [] if case.access is AccessClass.COUPLED else ["--budget", "40%"]
    found = []
    for seed in ("1", "2", "3"):
        out = world.fresh()
        command = [sys.executable, "-m", "mergepipe", "merge", str(path), str(out), *budget]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed,
                       "XDG_CACHE_HOME": str(world.folder / f"cache-{seed}")})  # fmt: skip
        found.append((published(out), api.recorded_plan(out).digest))
    assert found[0] == found[1] == found[2]


def inputs(plan: AccessPlan, tensor: TensorMerge) -> tuple[Any, list[Any]]:
    """θ₀ and the deltas of one output tensor, flat, in the precision of its tiles."""
    kind = np.float64 if tensor.wide else np.float32

    def read(number: int, name: str) -> Any:
        return read_floats(Path(plan.logical.inputs[number].url))[name].astype(kind).ravel()

    base = read(tensor.base_input, tensor.base)
    return base, [read(each.input, each.name) - base for each in tensor.experts]


def check_facts(plan: AccessPlan, number: int, base: Any, deltas: list[Any]) -> None:
    """The facts that the plan carries are those computed plainly: counts and thresholds exactly, sums nearly."""
    tensor, access = plan.logical.tensors[number], plan.tensors[number]
    method = operator(plan.logical.method)
    spec = tensor_spec(plan.logical, tensor)
    for needs, facts, delta in zip(method.needs(spec), access.facts, deltas, strict=True):
        for need, fact in zip(needs, facts, strict=True):
            assert_close(fact, fact_of(need, delta), 1e-9)
    for together, found in zip(method.group_needs(spec), access.group_facts, strict=True):
        # The divergence is what is left of sums that nearly cancel.
        nearly = 1e-6 if isinstance(together, ImportanceNeed) else 1e-9
        assert_close(found, group_fact_of(together, spec, base, deltas), nearly)


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any], nearly: float) -> None:
    """Integers are equal; floats and lists of them agree to float64 sums, relative to the largest of a list."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, int):
            assert found[key] == value, key
            continue
        mine, theirs = np.asarray(found[key], np.float64), np.asarray(value, np.float64)
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=nearly, atol=nearly * float(np.abs(theirs).max(initial=0.0)))


def whole_blocks_differ(part: Path, full: Path) -> list[str]:
    """Tensors in which a block, of which every expert was read, is not the full merge's."""
    plan = api.recorded_plan(part)
    mine, theirs = published(part), published(full)
    wrong = []
    for tensor, access in zip(plan.logical.tensors, plan.tensors, strict=True):
        if not tensor.experts or not tensor.elements:
            continue
        blocks = -(-tensor.elements // access.block)
        whole = np.all([read_set(access, place, blocks) for place in range(len(tensor.experts))], axis=0)
        keep = np.repeat(whole, access.block)[: tensor.elements]
        left, right = (np.frombuffer(each[tensor.name], np.uint32)[keep] for each in (mine, theirs))
        if (left != right).any():
            wrong.append(tensor.name)
    return wrong
