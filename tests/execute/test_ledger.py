"""What was read is digested in plan order, however it came in steps, and held against the index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mergepipe.core.leaves import block_digest, fold_blocks
from mergepipe.errors import StaleIndex
from mergepipe.execute.combine import StepResult, TensorTask
from mergepipe.execute.ledger import ReadLedger
from mergepipe.plan.access import AccessPlan, TensorAccess
from mergepipe.plan.bounds import EXACT
from mergepipe.plan.budget import Budget
from mergepipe.plan.logical import ExpertTensor, Input, LogicalPlan, TensorMerge

A, B, C, D = (bytes([n]) * 32 for n in range(4))
NOTHING = np.empty(0, np.uint8)
Leaves = dict[int, list[tuple[int, list[bytes]]]]


def plan_of(expected: tuple[str, str] = ("", ""), base_expected: str = "") -> AccessPlan:
    """Two tensors `t`, `u` of a base and two experts; the second expert has no part in `u`."""
    parts = tuple(ExpertTensor(n, f"x{n}", "F32", 30, {}) for n in (1, 2))
    tensors = (
        TensorMerge("t", (30,), "F32", "F32", "base t", parts, {}),
        TensorMerge("u", (30,), "F32", "F32", "base u", parts[:1], {}),
    )
    inputs = tuple(Input(f"m{n}", "", n - 1, "") for n in range(3))
    logical = LogicalPlan("linear", "linear@mergekit", 0, inputs, tensors, ())
    access = TensorAccess(10, ("all",) * 2, ((),) * 2, expected, base_expected)
    other = TensorAccess(10, ("all",), ((),), ("",))
    return AccessPlan(logical, Budget("x"), "norm", 1, (access, other), 0, 0, EXACT)


def task_of(plan: AccessPlan, number: int = 0) -> TensorTask:
    """What the ledger knows of a tensor."""
    tensor = plan.logical.tensors[number]
    return TensorTask(number, tensor, 10, np.ones((len(tensor.experts), 3), np.bool_), None, True)


def digests(plan: AccessPlan, *steps: Leaves, finish: bool = True) -> list[str]:
    """The digests after these steps of the first tensor."""
    ledger = ReadLedger(plan)
    for step in steps:
        ledger.retire(task_of(plan), StepResult(NOTHING, step))
    if finish:
        ledger.finish_tensor(task_of(plan))
    return list(ledger.digests())


def test_steps_do_not_show() -> None:
    """One step of three blocks, a step a block, or a block in two steps: the same digests."""
    plan = plan_of()
    whole = digests(plan, {0: [(0, [A]), (1, [B, C])], 1: [(1, [D])]})
    assert digests(plan, {0: [(0, [A])]}, {0: [(1, [B, C])], 1: [(1, [D])]}) == whole
    assert digests(plan, {0: [(0, [A]), (1, [B])]}, {0: [(1, [C])], 1: [(1, [D])]}) == whole


def test_a_digest_is_of_one_input() -> None:
    """Other bytes of one expert change its digest only; an input that was not read has that of nothing."""
    plan = plan_of()
    before = digests(plan, {0: [(0, [A])], 1: [(0, [B])]})
    after = digests(plan, {0: [(0, [A])], 1: [(0, [C])]})
    assert [x == y for x, y in zip(before, after, strict=True)] == [True, False, True]
    assert before[2] == digests(plan)[2]
    assert len(before) == 3


def test_a_digest_tells_tensors_apart() -> None:
    """The same bytes read of another tensor are not the same read."""
    plan = plan_of()
    found = []
    for number in (0, 1):
        ledger = ReadLedger(plan)
        ledger.retire(task_of(plan, number), StepResult(NOTHING, {0: [(0, [A])]}))
        ledger.finish_tensor(task_of(plan, number))
        found.append(ledger.digests()[0])
    assert found[0] != found[1]


def test_what_was_expected_passes() -> None:
    """Base and experts, blocks in order, leaves of one block in several steps."""
    base = fold_blocks([0, 1, 2], [block_digest([A]), block_digest([B, C]), block_digest([D])])
    expert = fold_blocks([1], [block_digest([C, D])])
    plan = plan_of((expert, ""), base)
    steps: tuple[Leaves, Leaves] = (
        {0: [(0, [A]), (1, [B])], 1: [(1, [C])]}, {0: [(1, [C]), (2, [D])], 1: [(1, [D])]},
    )  # fmt: skip
    assert digests(plan, *steps) == digests(plan_of(), *steps)


@pytest.mark.parametrize(
    ("step", "who"),
    [
        ({0: [(0, [A]), (1, [C])], 1: [(1, [D])]}, "m0: base t"),
        ({0: [(0, [A])], 1: [(1, [D])]}, "m0: base t"),
        ({0: [(0, [A]), (1, [B])], 1: [(1, [C])]}, "m1: x1"),
        ({0: [(0, [A]), (1, [B])], 1: [(2, [D])]}, "m1: x1"),
        ({0: [(0, [A]), (1, [B])], 1: [(1, [D]), (2, [D])]}, "m1: x1"),
    ],
)
def test_anything_else_is_a_stale_index(step: Leaves, who: str) -> None:
    """Other bytes, other blocks, or more blocks: the model and its own tensor's name are said."""
    base = fold_blocks([0, 1], [block_digest([A]), block_digest([B])])
    plan = plan_of((fold_blocks([1], [block_digest([D])]), ""), base)
    with pytest.raises(StaleIndex, match=f"^{who}: .*index again"):
        digests(plan, step)


def test_without_an_index_nothing_is_compared() -> None:
    """A full read has no expectation."""
    digests(plan_of(), {0: [(0, [A])], 1: [(0, [B])], 2: [(0, [C])]})


def test_a_tensor_leaves_nothing_to_the_next() -> None:
    """After a tensor is finished, the next one's blocks are its own."""
    plan = plan_of(("", ""), fold_blocks([0], [block_digest([A])]))
    ledger = ReadLedger(replace(plan, tensors=(plan.tensors[0], replace(plan.tensors[0], reads=("all",)))))
    for number in (0, 1):
        ledger.retire(task_of(plan, number), StepResult(NOTHING, {0: [(0, [A])]}))
        ledger.finish_tensor(task_of(plan, number))
    assert len(set(ledger.digests())) == 2
