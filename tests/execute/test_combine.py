"""One step: tiles in, stored bytes and leaf digests out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mergepipe.core.leaves import LEAF, leaf_digests
from mergepipe.errors import NonFiniteError
from mergepipe.execute.combine import (
    StepResult,
    TensorTask,
    Workspace,
    combine_step,
    tile_elements,
    workspace_bytes,
)
from mergepipe.operators.contract import Operator
from mergepipe.operators.registry import operator
from mergepipe.plan.access import AccessPlan, TensorAccess, tensor_spec
from mergepipe.plan.bounds import EXACT
from mergepipe.plan.budget import Budget
from mergepipe.plan.logical import ExpertTensor, Input, LogicalPlan, TensorMerge
from mergepipe.plan.schedule import Limits, Step

TASK = operator("task_arithmetic")
PARAMETERS = {"lambda": 1.0, "normalize": False, "rescale": False, "int8_mask": False}
GENERATOR = np.random.default_rng(8)


def plan_of(elements: int, experts: int, code: str = "F32", out: str = "F32") -> AccessPlan:
    """A merge of one tensor."""
    parts = tuple(ExpertTensor(n + 1, "w", code, elements, {"weight": 1.0, "density": 1.0}) for n in range(experts))
    tensor = TensorMerge("w", (elements,), code, out, "w", parts, PARAMETERS)
    inputs = tuple(Input(f"m{n}", "", n - 1, "") for n in range(experts + 1))
    logical = LogicalPlan("task_arithmetic", "task_arithmetic@mergekit", 0, inputs, (tensor,), ())
    access = TensorAccess(elements, ("all",) * experts, ((),) * experts, ("",) * experts)
    return AccessPlan(logical, Budget("x"), "norm", 1, (access,), 0, 0, EXACT)


def task_of(plan: AccessPlan, block: int, read: Any, method: Operator = TASK) -> TensorTask:
    """The task of its only tensor."""
    tensor = plan.logical.tensors[0]
    coefficients = method.resolve(tensor_spec(plan.logical, tensor), [()] * len(tensor.experts))
    return TensorTask(0, tensor, block, np.array(read, np.bool_), coefficients, True)


def slab(values: NDArray[Any]) -> NDArray[np.uint8]:
    """A buffer that begins with these values and goes on with rubbish."""
    return np.concatenate([values.astype(np.float32).view(np.uint8), np.full(64, 0x7F, np.uint8)])


def run(
    plan: AccessPlan, task: TensorTask, step: Step, arrays: dict[int, NDArray[Any]], capacity: int = 4096,
    copied: bool = False,
) -> StepResult:  # fmt: skip
    """One step over arrays that begin at the step's start."""
    slabs = {place: slab(values) for place, values in arrays.items()}
    out = None if copied else np.empty((step.stop - step.start) * 4 + 64, np.uint8)
    return combine_step(plan, TASK, task, step, slabs, out, Workspace(capacity))


@pytest.mark.parametrize("capacity", [1, 7, 64, 4096])
@pytest.mark.parametrize("start", [0, 20])
def test_tiles_and_blocks_do_not_show(capacity: int, start: int) -> None:
    """Blocks of ten elements, one read of both, one, or none: the sum of what is read, in tiles of any size."""
    base, one, two = (GENERATOR.standard_normal(40).astype(np.float32) for _ in range(3))
    read = [[1, 0, 1, 0, 1, 0], [1, 1, 0, 0, 1, 1]]
    task = task_of(plan_of(60, 2), 10, read)
    step = Step(0, start, start + 40, (0, 1, 2), ())
    result = run(plan_of(60, 2), task, step, {0: base, 1: one, 2: two}, capacity)
    seen = np.repeat(np.array(read, bool)[:, start // 10 : start // 10 + 4], 10, axis=1)
    expected = base + (np.where(seen[0], one - base, np.float32(0)) + np.where(seen[1], two - base, np.float32(0)))
    assert result.out.tobytes() == expected.tobytes()


def test_leaves_are_of_the_blocks_that_are_read() -> None:
    """Per place, block by block; blocks not read have none, whatever their buffer holds."""
    values = [GENERATOR.standard_normal(30).astype(np.float32) for _ in range(2)]
    task = task_of(plan_of(60, 1), 10, [[0, 1, 0, 1, 1, 0]])
    result = run(plan_of(60, 1), task, Step(0, 10, 40, (0, 1), ()), dict(enumerate(values)))

    def digests(array: NDArray[Any], block: int) -> tuple[int, list[bytes]]:
        return block, leaf_digests(array[(block - 1) * 10 : block * 10].view(np.uint8), 4)

    assert list(result.leaves[0]) == [digests(values[0], block) for block in (1, 2, 3)]
    assert list(result.leaves[1]) == [digests(values[1], block) for block in (1, 3)]


def test_a_step_inside_a_block_digests_its_own_leaves() -> None:
    """A block larger than a buffer comes in several steps, each of whole leaves but the last."""
    elements = 2 * LEAF + 100
    values = GENERATOR.standard_normal(elements).astype(np.float32)
    plan = plan_of(elements, 0)
    task = TensorTask(0, plan.logical.tensors[0], elements, np.zeros((0, 1), np.bool_), None, True)
    leaves: list[bytes] = []
    for start, stop in ((0, LEAF), (LEAF, elements)):
        result = run(plan, task, Step(0, start, stop, (0,), ()), {0: values[start:stop]}, copied=True)
        ((number, part),) = result.leaves[0]
        assert number == 0
        leaves += part
    assert leaves == leaf_digests(values.view(np.uint8), 4)


def test_a_copied_step_is_the_bases_buffer() -> None:
    """Where nothing changes, no byte is moved."""
    plan = plan_of(20, 1)
    base = np.arange(20, dtype=np.float32)
    slabs = {0: slab(base)}
    task = task_of(plan, 10, [[0, 0]])
    result = combine_step(plan, TASK, task, Step(0, 0, 20, (0,), ()), slabs, None, Workspace(64))
    assert np.shares_memory(result.out, slabs[0])
    assert result.out.tobytes() == base.tobytes()


def test_negative_zeros_and_payloads_of_a_copied_block_stay() -> None:
    """A block of which nothing is read keeps the base's bits, inside a step that is computed."""
    plan = replace(plan_of(20, 1), allow_nonfinite=True)
    base = np.array([-0.0, np.nan] * 10, np.float32)
    base.view(np.uint32)[3] = 0x7FC12345
    task = task_of(plan, 10, [[0, 1]])
    result = run(plan, task, Step(0, 0, 20, (0, 1), ()), {0: base, 1: np.ones(20)})
    assert result.out[:40].tobytes() == base[:10].tobytes()


@pytest.mark.parametrize("element", [0, 4095, 4096, 9999])
@pytest.mark.parametrize("start", [0, 30_000])
def test_the_offending_element_is_counted_in_the_tensor(element: int, start: int) -> None:
    """Not in the tile and not in the step."""
    plan = plan_of(50_000, 1)
    arrays = {place: GENERATOR.standard_normal(10_000).astype(np.float32) for place in (0, 1)}
    arrays[1][element] = np.nan
    task = task_of(plan, 10_000, [[1] * 5])
    with pytest.raises(NonFiniteError, match=rf"^m1: w holds nan at element {start + element:,}:"):
        run(plan, task, Step(0, start, start + 10_000, (0, 1), ()), arrays)


@pytest.mark.parametrize("method", ["task_arithmetic", "linear", "ties", "dare_ties"])
@pytest.mark.parametrize("experts", [1, 8, 60])
def test_workspaces_are_as_large_as_said(method: str, experts: int) -> None:
    """All temporaries that an operator may ask for are within `workspace_bytes`."""
    plan = plan_of(10, experts)
    chosen = operator(method)
    count = tile_elements(chosen, plan, Limits())
    assert count & (count - 1) == 0
    assert 4096 <= count <= 262_144
    arrays = chosen.scratch_arrays(experts) + 2
    space = Workspace(count)
    held = sum(space.scratch(np.dtype(np.float32)).floats(str(n), count).nbytes for n in range(arrays))
    assert held <= workspace_bytes(chosen, plan, Limits())


def test_a_workspace_keeps_its_temporaries() -> None:
    """One scratch a width, the same from tile to tile."""
    space = Workspace(16)
    single = space.scratch(np.dtype(np.float32))
    assert space.scratch(np.dtype(np.float32)) is single
    assert space.scratch(np.dtype(np.float64)) is not single
    assert space.scratch(np.dtype(np.float64)).floats("x", 4).dtype == np.float64
