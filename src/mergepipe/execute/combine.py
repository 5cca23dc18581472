"""One step of arithmetic: raw tiles of base and experts in, stored bytes of the output out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.arrays import Array, Scratch
from mergepipe.core.dtypes import DType, FloatArray, decode, dtype, encode
from mergepipe.core.leaves import leaf_digests
from mergepipe.errors import NonFiniteError
from mergepipe.operators.contract import Grain, Operator, Tile
from mergepipe.operators.kernel import Kernel, kernel_for
from mergepipe.plan.access import AccessPlan
from mergepipe.plan.logical import TensorMerge
from mergepipe.plan.schedule import Limits, Step

Raw = NDArray[np.uint8]

# A tile's arrays at most. Measured: smaller tiles leave the caches less, but workers then wait for the interpreter at
# every call, which costs more. Speed only.
_CACHE_BYTES = 32 << 20
_SMALLEST_TILE, _LARGEST_TILE = 4096, 262144
# Base, result and one decoded temporary, beside what the operator takes.
_OWN_ARRAYS = 3


# Of output. Loading the compiled kernels takes about a second, and compiling them, once on a machine, some more.
_WORTH_COMPILING = 256 << 20


@dataclass(frozen=True, slots=True)
class TensorTask:
    """What computing one output tensor takes beside its bytes. `read[i, b]`: is block b of expert i read.

    Where there is a `kernel`, tiles that it can merge are merged by it. Speed only.
    """

    number: int
    tensor: TensorMerge
    block: int
    read: NDArray[np.bool_]
    coefficients: Any
    copies_unread: bool
    kernel: Kernel | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """A computed step: the output's bytes and, per slab place, the leaf digests of each block's bytes."""

    out: Raw
    leaves: Mapping[int, Sequence[tuple[int, list[bytes]]]] = field(hash=False)


def tile_elements(operator: Operator, plan: AccessPlan, limits: Limits) -> int:
    """Elements of a tile: a power of two whose arrays stay in the caches; room for the longest row."""
    room = min(_CACHE_BYTES, limits.memory // (4 * limits.workers))
    count = _LARGEST_TILE
    while count > _SMALLEST_TILE and count * _element_bytes(operator, plan) > room:
        count //= 2
    if operator.grain is Grain.ROW:
        count = max((count, *(_row(tensor) for tensor in plan.logical.tensors)))
    return count


def workspace_bytes(operator: Operator, plan: AccessPlan, limits: Limits) -> int:
    """Bytes one worker's temporaries take at most."""
    return tile_elements(operator, plan, limits) * _element_bytes(operator, plan)


def _element_bytes(operator: Operator, plan: AccessPlan) -> int:
    """Bytes of temporaries an element of a tile takes: float32 and float64 arrays where both occur, and flags."""
    experts = max((len(tensor.experts) for tensor in plan.logical.tensors), default=0)
    arrays = operator.scratch_arrays(experts) + _OWN_ARRAYS
    sizes = {8 if tensor.wide else 4 for tensor in plan.logical.tensors} or {4}
    return arrays * sum(sizes) + 4


def _row(tensor: TensorMerge) -> int:
    """Elements of one row: of the last dimension; a vector is one row."""
    return max(1, tensor.shape[-1]) if tensor.shape else 1


class Workspace:
    """One worker's temporaries, reused from tile to tile."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._scratch: dict[str, Scratch] = {}

    def scratch(self, compute: np.dtype[Any]) -> Scratch:
        if compute.name not in self._scratch:
            self._scratch[compute.name] = Scratch(self.capacity, compute)
        return self._scratch[compute.name]


def combine_step(
    plan: AccessPlan, operator: Operator, task: TensorTask, step: Step, slabs: Mapping[int, Raw], out: Raw | None,
    workspace: Workspace,
) -> StepResult:  # fmt: skip
    """Compute one step.

    `slabs[p]` holds the stored bytes of the step's span, of the base (p = 0) and of the experts
    (p = place + 1) as far as they are planned. `out` takes the result; None where the base's bytes
    are the result. Raises `NonFiniteError` naming the first offender, unless the plan allows it.
    """
    tensor = task.tensor
    base_type, out_type = dtype(tensor.dtype), dtype(tensor.out_dtype)
    leaves: dict[int, list[tuple[int, list[bytes]]]] = {place: [] for place in step.slabs}
    for start, stop in block_spans(step, task.block):
        block = start // task.block
        at = start - step.start
        readers = [p for p in step.slabs if p == 0 or task.read[p - 1, block]]
        for place in readers:
            stored = base_type if place == 0 else dtype(tensor.experts[place - 1].dtype)
            end = stop if place == 0 else min(stop, tensor.experts[place - 1].elements)
            if end > start:
                raw = slabs[place][at * stored.itemsize : (end - step.start) * stored.itemsize]
                leaves[place].append((block, leaf_digests(raw, stored.itemsize)))
        experts = [p - 1 for p in readers if p]
        with np.errstate(over="ignore", invalid="ignore"):  # found by looking at the result, not by warnings
            _combine_block(plan, operator, task, slabs, out, (step.start, start, stop), experts, workspace)
    result = slabs[0] if out is None else out
    size = base_type.itemsize if out is None else out_type.itemsize
    return StepResult(result[: (step.stop - step.start) * size], leaves)


def _combine_block(
    plan: AccessPlan, operator: Operator, task: TensorTask, slabs: Mapping[int, Raw], out: Raw | None,
    place: tuple[int, int, int], experts: Sequence[int], workspace: Workspace,
) -> None:  # fmt: skip
    """Elements `[start, stop)` of one block, tile by tile; `place` = (the step's start, start, stop)."""
    origin, start, stop = place
    tensor = task.tensor
    base_size, out_size = dtype(tensor.dtype).itemsize, dtype(tensor.out_dtype).itemsize
    if not dtype(tensor.dtype).is_float:
        if out is not None:
            copied = slice((start - origin) * base_size, (stop - origin) * base_size)
            out[copied] = slabs[0][copied]
        return
    stride = workspace.capacity
    if operator.grain is Grain.ROW:
        stride = stride // _row(tensor) * _row(tensor)
    for first in range(start, stop, stride):
        count = min(stride, stop - first)
        at = first - origin
        base_raw = slabs[0][at * base_size : (at + count) * base_size]
        out_raw = None if out is None else out[at * out_size : (at + count) * out_size]
        if _combine_by_kernel(task, slabs, experts, (origin, first, count), base_raw, out_raw):
            continue
        _combine_arrays(plan, operator, task, slabs, experts, (origin, first, count), base_raw, out_raw, workspace)


def _combine_by_kernel(
    task: TensorTask, slabs: Mapping[int, Raw], experts: Sequence[int], place: tuple[int, int, int],
    base_raw: Raw, out_raw: Raw | None,
) -> bool:  # fmt: skip
    """A tile by the tensor's kernel, if it can; `place` = (the slabs' start, the tile's start, its length)."""
    kernel, tensor = task.kernel, task.tensor
    if kernel is None:
        return False
    if not experts and task.copies_unread and tensor.dtype == tensor.out_dtype:
        finite = kernel.is_finite(base_raw)
        if finite and out_raw is not None:
            out_raw[:] = base_raw
        return finite
    origin, first, count = place
    raws: list[Raw | None] = [None] * len(tensor.experts)
    for expert in experts:
        part = tensor.experts[expert]
        if part.elements < first + count:
            return False
        size = dtype(part.dtype).itemsize
        raws[expert] = slabs[expert + 1][(first - origin) * size : (first - origin + count) * size]
    return out_raw is not None and kernel.merge(first, base_raw, raws, out_raw)


def _combine_arrays(
    plan: AccessPlan, operator: Operator, task: TensorTask, slabs: Mapping[int, Raw], experts: Sequence[int],
    place: tuple[int, int, int], base_raw: Raw, out_raw: Raw | None, workspace: Workspace,
) -> None:  # fmt: skip
    """A tile by array loops. `place` = (the slabs' start, the tile's start, its length)."""
    origin, first, count = place
    tensor = task.tensor
    base_type, out_type = dtype(tensor.dtype), dtype(tensor.out_dtype)
    unread = not experts and task.copies_unread
    scratch = workspace.scratch(np.dtype(np.float64 if tensor.wide else np.float32))
    # A copied buffer may hold infinities by design (a causal mask).
    check = not plan.allow_nonfinite and not tensor.copied
    base = decode(base_raw, base_type, scratch.floats("tile.base", count))
    if unread:
        if check:
            _require_finite(base, plan.logical.inputs[tensor.base_input].ref, tensor.base, first)
        result = base
    else:
        deltas: list[Callable[[Array], None] | None] = [None] * len(tensor.experts)
        for expert in experts:
            deltas[expert] = _delta(plan, task, expert, slabs[expert + 1], origin, first, count, base)
        result = scratch.floats("tile.out", count)
        operator.combine(Tile(first, count, base, deltas, scratch), task.coefficients, result)
    if out_raw is None:
        return
    if unread and base_type.code == out_type.code:
        out_raw[:] = base_raw
        return
    if check and not _representable(result, out_type):
        _require_finite(base, plan.logical.inputs[tensor.base_input].ref, tensor.base, first)
        raise _unrepresentable(result, out_type, tensor, first)
    encode(result, out_type, out_raw)


def _delta(
    plan: AccessPlan, task: TensorTask, expert: int, slab: Raw, origin: int, first: int, count: int, base: FloatArray
) -> Callable[[Array], None]:  # fmt: skip
    part = task.tensor.experts[expert]
    stored = dtype(part.dtype)
    covered = max(0, min(count, part.elements - first))
    at = first - origin
    raw = slab[at * stored.itemsize : (at + covered) * stored.itemsize]

    # In a float64 tensor a delta of two narrower inputs is still their float32 difference: the fact that
    # thresholds and norms are of does not depend on who else is merged.
    narrow = task.tensor.wide and "F64" not in (part.dtype, task.tensor.dtype)

    def write(out: Array) -> None:
        inner = out[:covered]
        decode(raw, stored, inner)
        if narrow:
            inner[:] = inner.astype(np.float32) - base[:covered].astype(np.float32)
        else:
            np.subtract(inner, base[:covered], out=inner)
        sum_ = np.add.reduce(inner)
        if covered < count:
            out[covered:] = 0.0
        if not math.isfinite(sum_) and not plan.allow_nonfinite:
            _require_finite(base, plan.logical.inputs[task.tensor.base_input].ref, task.tensor.base, first)
            values = decode(raw, stored, np.empty_like(inner))
            _require_finite(values, plan.logical.inputs[part.input].ref, part.name, first)
            _require_finite(inner, plan.logical.inputs[part.input].ref, f"{part.name} (its task vector)", first)

    return write


def _require_finite(values: FloatArray, ref: str, tensor: str, first: int) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(np.add.reduce(values)):
            return
    offenders = np.flatnonzero(~np.isfinite(values))
    if offenders.size:
        where = int(offenders[0])
        raise NonFiniteError(
            f"{ref}: {tensor} holds {values[where]} at element {first + where:,}: a finite number was expected; "
            "mend the model, or --allow-nonfinite goes on, without a bound"
        )


def _representable(values: FloatArray, target: DType) -> bool:
    """Whether no value is, or would be rounded to, NaN or infinity."""
    limit = target.overflow
    return float(np.max(values)) < limit and float(np.min(values)) > -limit


def _unrepresentable(values: FloatArray, target: DType, tensor: TensorMerge, first: int) -> NonFiniteError:
    where = int(np.flatnonzero(~(np.abs(values.astype(np.float64)) < target.overflow))[0])
    return NonFiniteError(
        f"{tensor.name}: the merged value {values[where]} at element {first + where:,} does not fit "
        f"{target.code}; choose a wider out_dtype, or --allow-nonfinite goes on, without a bound"
    )


def worth_compiling(plan: AccessPlan) -> bool:
    """Whether a merge is large enough to look for compiled kernels."""
    return sum(each.elements * dtype(each.out_dtype).itemsize for each in plan.logical.tensors) >= _WORTH_COMPILING


def kernel_of(tensor: TensorMerge, coefficients: Any) -> Kernel | None:
    """The kernel that merges the tensor's tiles, if there is one; there is none of float64 tiles."""
    if tensor.wide or not dtype(tensor.dtype).is_float:
        return None
    return kernel_for(
        coefficients, dtype(tensor.dtype), [dtype(each.dtype) for each in tensor.experts], dtype(tensor.out_dtype)
    )


def block_spans(step: Step, block: int) -> list[tuple[int, int]]:
    """A step's elements, cut where blocks end."""
    spans = []
    start = step.start
    while start < step.stop:
        stop = min((start // block + 1) * block, step.stop)
        spans.append((start, stop))
        start = stop
    return spans
