"""The access plan: which expert blocks may inform which output tensor, at what cost and what risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mergepipe.core.digest import digest_of
from mergepipe.core.leaves import fold_blocks
from mergepipe.errors import FormatError, NonFiniteError
from mergepipe.index.model import DeltaIndex, Wanted
from mergepipe.operators.contract import Operator, Reads, TensorSpec, TermSpec
from mergepipe.plan.bounds import EXACT, Bound, TensorEvidence, bound_of, no_bound
from mergepipe.plan.budget import Budget
from mergepipe.plan.cost import block_costs, full_bytes, grid_of
from mergepipe.plan.logical import LogicalPlan, TensorMerge
from mergepipe.plan.select import Policy, select
from mergepipe.stats.contract import Fact

ALL = "all"
NONE = "none"


@dataclass(frozen=True, slots=True)
class TensorAccess:
    """What is read for one output tensor.

    `block` is the grid's block size in elements. Per expert: `reads` is "all", "none" or a bitmap of
    blocks (hex, least significant bit first); `facts` answer the operator's needs; `expected` is the
    fold of the digests that the blocks read must have ("" where no index knows them).
    `base_expected` is the same over all blocks of the base.
    """

    block: int
    reads: tuple[str, ...]
    facts: tuple[tuple[Mapping[str, float | int], ...], ...]
    expected: tuple[str, ...]
    base_expected: str = ""


@dataclass(frozen=True, slots=True)
class AccessPlan:
    """The access set with its cost, its bound and all facts it relies on: replay needs no index.

    `tensors` runs parallel to `logical.tensors`. Byte figures are of expert payload.
    """

    logical: LogicalPlan
    budget: Budget
    policy: str
    block_bytes: int
    tensors: tuple[TensorAccess, ...]
    full_bytes: int
    planned_bytes: int
    bound: Bound
    allow_nonfinite: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """The plan as plain values, without what changes no byte: where inputs are found, and remarks."""
        inputs = tuple(replace(each, url="") for each in self.logical.inputs)
        bare = replace(self, logical=replace(self.logical, inputs=inputs, notes=()))
        plain: dict[str, Any] = msgspec.to_builtins(bare)
        return plain

    @property
    def digest(self) -> str:
        """SHA-256 over all that execution depends on."""
        return digest_of(self.identity)


def tensor_spec(logical: LogicalPlan, tensor: TensorMerge) -> TensorSpec:
    """An output tensor as its operator sees it."""
    return TensorSpec(
        name=tensor.name,
        elements=tensor.elements,
        row=tensor.row,
        seed=logical.seed,
        parameters=tensor.parameters,
        terms=tuple(TermSpec(logical.inputs[e.input].position, e.parameters) for e in tensor.experts),
        reference=tensor.reference,
        wide=tensor.wide,
        shape=tensor.shape,
    )


def wanted_facts(logical: LogicalPlan, operator: Operator) -> list[Wanted]:
    """Every need of every tensor; pairs are numbered as the experts are."""
    return [
        Wanted(expert.input - 1, tensor.base, need)
        for tensor in logical.tensors
        if tensor.elements and tensor.experts
        for expert, needs in zip(tensor.experts, operator.needs(tensor_spec(logical, tensor)), strict=True)
        for need in needs
    ]


def choose(
    logical: LogicalPlan,
    operator: Operator,
    facts: Mapping[Wanted, Fact],
    indices: Sequence[DeltaIndex],
    budget: Budget,
    policy: Policy,
    block_bytes: int,
    allow_nonfinite: bool,
) -> AccessPlan:
    """Choose what to read: everything where nothing is capped, else by `policy` from the index's norms.

    `indices` has one index per expert, or is empty where the budget is not capped. Raises
    `NonFiniteError` for what the index knows to be non-finite, unless allowed.
    """
    inlined = [_inline(logical, operator, facts, tensor) for tensor in logical.tensors]
    merged = [n for n, tensor in enumerate(logical.tensors) if tensor.experts and tensor.elements]
    # Resolving early brings every complaint about parameters before the first expert byte.
    coefficients = {n: operator.resolve(tensor_spec(logical, logical.tensors[n]), inlined[n]) for n in merged}
    full = full_bytes(logical)
    if indices:
        unfit = _nonfinite(logical, indices)
        if unfit and not allow_nonfinite:
            raise NonFiniteError(f"{'; '.join(unfit)}: --allow-nonfinite goes on, without a bound")
    else:
        unfit = []
    if budget.cap is None and budget.blocks is None:
        tensors = tuple(_full_access(logical, indices, n, inlined[n], block_bytes) for n in range(len(inlined)))
        return AccessPlan(logical, budget, policy.value, block_bytes, tensors, full, full, EXACT, allow_nonfinite)
    evidence = [_evidence(logical, indices, n, coefficients[n], block_bytes) for n in merged]
    reads = _select(logical, operator, evidence, budget, policy, block_bytes)
    read_of = dict(zip(merged, reads, strict=True))
    tensors = tuple(
        _partial_access(logical, indices, n, inlined[n], read_of.get(n), block_bytes) for n in range(len(inlined))
    )
    evidence = [replace(part, read=read) for part, read in zip(evidence, reads, strict=True)]
    bound = no_bound(f"non-finite inputs: {unfit[0]}") if unfit else bound_of(operator, evidence)
    planned = sum(
        int(block_costs(expert, grid_of(part.tensor, block_bytes))[row].sum())
        for part in evidence
        for expert, row in zip(part.tensor.experts, part.read, strict=True)
    )
    return AccessPlan(logical, budget, policy.value, block_bytes, tensors, full, planned, bound, allow_nonfinite)


def read_set(access: TensorAccess, expert: int, blocks: int) -> NDArray[np.bool_]:
    """Which of a tensor's `blocks` blocks are read from its `expert`-th expert."""
    text = access.reads[expert]
    if text == ALL:
        return np.ones(blocks, np.bool_)
    if text == NONE:
        return np.zeros(blocks, np.bool_)
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        raise FormatError(f"plan: {text!r:.40} is not a bitmap; the plan is damaged") from None
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    if bits.size < blocks:
        raise FormatError(f"plan: a bitmap of {bits.size} bits for {blocks} blocks; the plan is damaged")
    return bits[:blocks].astype(np.bool_)


def resolve_tensor(plan: AccessPlan, operator: Operator, number: int) -> Any:
    """The coefficients of one output tensor, from the facts inlined in the plan."""
    spec = tensor_spec(plan.logical, plan.logical.tensors[number])
    return operator.resolve(spec, plan.tensors[number].facts)


def _inline(
    logical: LogicalPlan, operator: Operator, facts: Mapping[Wanted, Fact], tensor: TensorMerge
) -> tuple[tuple[Fact, ...], ...]:
    if not tensor.experts or not tensor.elements:
        return tuple(() for _ in tensor.experts)
    needs = operator.needs(tensor_spec(logical, tensor))
    return tuple(
        tuple(facts[Wanted(expert.input - 1, tensor.base, need)] for need in wanted)
        for expert, wanted in zip(tensor.experts, needs, strict=True)
    )


def _bitmap(read: NDArray[np.bool_]) -> str:
    if read.all():
        return ALL
    if not read.any():
        return NONE
    return np.packbits(read, bitorder="little").tobytes().hex()


def _full_access(
    logical: LogicalPlan,
    indices: Sequence[DeltaIndex],
    number: int,
    facts: tuple[tuple[Fact, ...], ...],
    block_bytes: int,
) -> TensorAccess:
    tensor = logical.tensors[number]
    grid = grid_of(tensor, block_bytes)
    if indices and tensor.experts and tensor.elements:
        everything = np.ones((len(tensor.experts), grid.count), np.bool_)
        return _partial_access(logical, indices, number, facts, everything, block_bytes)
    count = len(tensor.experts)
    return TensorAccess(grid.block, (ALL,) * count, facts, ("",) * count)


def _partial_access(
    logical: LogicalPlan,
    indices: Sequence[DeltaIndex],
    number: int,
    facts: tuple[tuple[Fact, ...], ...],
    read: Reads | None,
    block_bytes: int,
) -> TensorAccess:
    tensor = logical.tensors[number]
    grid = grid_of(tensor, block_bytes)
    if read is None:
        return TensorAccess(grid.block, (NONE,) * len(tensor.experts), facts, ("",) * len(tensor.experts))
    expected = []
    for expert, row in zip(tensor.experts, read, strict=True):
        digests = indices[expert.input - 1].blocks[tensor.base].digest
        numbers = np.flatnonzero(row & (block_costs(expert, grid) > 0))
        expected.append(fold_blocks(numbers.tolist(), digests[numbers].tolist()))
    base = indices[tensor.experts[0].input - 1].base[tensor.base].digest
    return TensorAccess(
        block=grid.block,
        reads=tuple(_bitmap(row) for row in read),
        facts=facts,
        expected=tuple(expected),
        base_expected=fold_blocks(range(base.size), base.tolist()),
    )


def _evidence(
    logical: LogicalPlan, indices: Sequence[DeltaIndex], number: int, coefficients: Any, block_bytes: int
) -> TensorEvidence:
    tensor = logical.tensors[number]
    grid = grid_of(tensor, block_bytes)
    norms = np.stack([indices[expert.input - 1].blocks[tensor.base].l2 for expert in tensor.experts])
    base = indices[tensor.experts[0].input - 1].base[tensor.base].l2
    sizes = np.full(grid.count, grid.block, np.int64)
    sizes[-1] = grid.size(grid.count - 1)
    return TensorEvidence(tensor, coefficients, norms, np.zeros(norms.shape, np.bool_), base, sizes)


def _select(
    logical: LogicalPlan,
    operator: Operator,
    evidence: Sequence[TensorEvidence],
    budget: Budget,
    policy: Policy,
    block_bytes: int,
) -> list[Reads]:
    experts = len(logical.inputs) - 1
    blocks = sum(part.norms.shape[1] for part in evidence)
    worth = np.zeros((experts, blocks))
    cost = np.zeros((experts, blocks), np.int64)
    at = 0
    for part in evidence:
        span = slice(at, at + part.norms.shape[1])
        gains = operator.gains(part.coefficients)
        for expert, gain, norms in zip(part.tensor.experts, gains, part.norms, strict=True):
            worth[expert.input - 1, span] = gain * norms
            cost[expert.input - 1, span] = block_costs(expert, grid_of(part.tensor, block_bytes))
        at = span.stop
    cap = int(cost.sum()) if budget.cap is None else budget.cap
    chosen = select(worth, cost, cap, budget.blocks, policy, logical.seed)
    reads = []
    at = 0
    for part in evidence:
        span = slice(at, at + part.norms.shape[1])
        reads.append(np.stack([chosen[expert.input - 1, span] for expert in part.tensor.experts]))
        at = span.stop
    return reads


def _nonfinite(logical: LogicalPlan, indices: Sequence[DeltaIndex]) -> list[str]:
    """Which inputs hold non-finite values in which tensors, as the indices know it."""
    found = []
    for tensor in logical.tensors:
        for number, expert in enumerate(tensor.experts if tensor.elements else ()):
            index = indices[expert.input - 1]
            if number == 0 and (count := int(index.base[tensor.base].nonfinite.sum())):
                found.append(f"{logical.inputs[0].ref}: {tensor.base} has {count} non-finite values")
            elif count := int(index.blocks[tensor.base].nonfinite.sum()):
                found.append(f"{logical.inputs[expert.input].ref}: {expert.name} has {count} non-finite values")
    return found
