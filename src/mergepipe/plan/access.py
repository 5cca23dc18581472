"""The access plan: which expert blocks may inform which output tensor, at what cost and what risk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mergepipe.core.digest import digest_of
from mergepipe.core.leaves import fold_blocks
from mergepipe.errors import FormatError, NonFiniteError
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Wanted, WantedGroup
from mergepipe.operators.contract import Operator, Reads, TensorSpec, TermSpec
from mergepipe.plan.bounds import EXACT, Bound, TensorEvidence, bound_of, no_bound
from mergepipe.plan.budget import Budget
from mergepipe.plan.cost import block_costs, full_bytes, grid_of, required_bytes
from mergepipe.plan.feasible import require_feasible
from mergepipe.plan.logical import ExpertTensor, LogicalPlan, PairKey, TensorMerge
from mergepipe.plan.select import Policy, select
from mergepipe.stats.contract import Fact, GroupFact

ALL = "all"
NONE = "none"
EVERYTHING, NOTHING = np.True_, np.False_


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
    group_facts: tuple[Mapping[str, float | int | Sequence[float]], ...] = ()


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
        tokenizer = self.logical.tokenizer.without_place()
        bare = replace(self, logical=replace(self.logical, inputs=inputs, notes=(), tokenizer=tokenizer))
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
        terms=tuple(TermSpec(expert.position, expert.parameters) for expert in tensor.experts),
        reference=tensor.reference,
        wide=tensor.wide,
        shape=tensor.shape,
    )


def wanted_facts(logical: LogicalPlan, operator: Operator) -> list[Wanted]:
    """Every need of every tensor; pairs are numbered as in `LogicalPlan.pairs`."""
    number = _pair_numbers(logical)
    return [
        Wanted(number[tensor.base_input, expert.input], tensor.name, need)
        for tensor in logical.tensors
        if tensor.elements and tensor.experts
        for expert, needs in zip(tensor.experts, operator.needs(tensor_spec(logical, tensor)), strict=True)
        for need in needs
    ]


def wanted_group_facts(logical: LogicalPlan, operator: Operator) -> list[WantedGroup]:
    """Every need of several experts together, tensor by tensor."""
    number = _pair_numbers(logical)
    return [wanted for tensor in logical.tensors for wanted in _group_wants(logical, number, operator, tensor)]


def choose(
    logical: LogicalPlan,
    operator: Operator,
    facts: Mapping[Wanted, Fact],
    indices: Sequence[DeltaIndex],
    budget: Budget,
    policy: Policy,
    block_bytes: int,
    allow_nonfinite: bool,
    group_facts: Mapping[WantedGroup, GroupFact] = MappingProxyType({}),
) -> AccessPlan:
    """Choose what to read: everything where nothing is capped, else by `policy` from the index's norms.

    `indices` has one index a pair (`LogicalPlan.pairs`), or is empty where the budget is not capped.
    Raises `NonFiniteError` for what the index knows to be non-finite, unless allowed, and
    `BudgetInfeasible` where the method or the recipe must read more than the budget.
    """
    known = _Known(logical, operator, facts, group_facts, indices, block_bytes)
    merged = [n for n, tensor in enumerate(logical.tensors) if is_combined(tensor) and tensor.elements]
    # Resolving early brings every complaint about parameters before the first expert byte.
    coefficients = {n: known.resolve(n) for n in merged}
    full = full_bytes(logical)
    unfit = _nonfinite(logical, known) if indices else []
    if unfit and not allow_nonfinite:
        raise NonFiniteError(f"{'; '.join(unfit)}: --allow-nonfinite goes on, without a bound")
    every = range(len(logical.tensors))
    if budget.cap is None and budget.blocks is None:
        tensors = tuple(known.access(n, EVERYTHING) for n in every)
        bound = no_bound("non-finite inputs are allowed") if allow_nonfinite else EXACT
        return AccessPlan(logical, budget, policy.value, block_bytes, tensors, full, full, bound, allow_nonfinite)
    require_feasible(logical, operator, budget, block_bytes)
    evidence = [known.evidence(n, coefficients[n]) for n in merged if _has_choice(logical.tensors[n])]
    reads = _select(logical, operator, evidence, budget, policy, block_bytes)
    evidence = [replace(part, read=read) for part, read in zip(evidence, reads, strict=True)]
    read_of = {part.tensor.name: part.read for part in evidence}
    whole = {tensor.name: EVERYTHING for tensor in logical.tensors if tensor.assembly is not None}
    tensors = tuple(known.access(n, (read_of | whole).get(logical.tensors[n].name, NOTHING)) for n in every)
    if unfit or allow_nonfinite:
        bound = no_bound(f"non-finite inputs: {unfit[0]}" if unfit else "non-finite inputs are allowed")
    else:
        bound = bound_of(operator, evidence)
    planned = required_bytes(logical) + sum(
        int(block_costs(expert, grid_of(part.tensor, block_bytes))[row].sum())
        for part in evidence
        for expert, row in zip(part.tensor.experts, part.read, strict=True)
        if expert.input != 0
    )
    return AccessPlan(logical, budget, policy.value, block_bytes, tensors, full, planned, bound, allow_nonfinite)


def _has_choice(tensor: TensorMerge) -> bool:
    """Whether blocks of the tensor may be left unread: where rows go by token, all are read."""
    return bool(tensor.experts) and tensor.assembly is None


def is_combined(tensor: TensorMerge) -> bool:
    """Whether a tensor goes through its method, not only to the output: it has experts, or its base is an input."""
    return not tensor.copied and (bool(tensor.experts) or tensor.reference is not None)


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
    return operator.resolve(spec, plan.tensors[number].facts, plan.tensors[number].group_facts)


class _Known:
    """What is known of a logical plan's tensors: facts to inline, and the indices' view of each."""

    def __init__(
        self,
        logical: LogicalPlan,
        operator: Operator,
        facts: Mapping[Wanted, Fact],
        group_facts: Mapping[WantedGroup, GroupFact],
        indices: Sequence[DeltaIndex],
        block_bytes: int,
    ) -> None:
        self._logical, self._operator, self._block_bytes = logical, operator, block_bytes
        self._pairs = _pair_numbers(logical)
        self._indices = dict(zip(self._pairs, indices, strict=True)) if indices else {}
        self._inlined = [self._inline(tensor, facts) for tensor in logical.tensors]
        self._grouped = [self._inline_group(tensor, group_facts) for tensor in logical.tensors]

    def resolve(self, number: int) -> Any:
        """The operator's coefficients of one tensor."""
        spec = tensor_spec(self._logical, self._logical.tensors[number])
        return self._operator.resolve(spec, self._inlined[number], self._grouped[number])

    def blocks(self, tensor: TensorMerge, expert: ExpertTensor) -> BlockFacts:
        return self._indices[tensor.base_input, expert.input].blocks[tensor.name]

    def base(self, tensor: TensorMerge) -> BaseFacts:
        return self._indices[tensor.base_input, tensor.experts[0].input].base[tensor.name]

    def evidence(self, number: int, coefficients: Any) -> TensorEvidence:
        """Norms of one tensor's blocks; nothing is read yet."""
        tensor = self._logical.tensors[number]
        grid = grid_of(tensor, self._block_bytes)
        norms = np.stack([self.blocks(tensor, expert).l2 for expert in tensor.experts])
        sizes = np.full(grid.count, grid.block, np.int64)
        sizes[-1] = grid.size(grid.count - 1)
        unread = np.zeros(norms.shape, np.bool_)
        return TensorEvidence(tensor, coefficients, norms, unread, self.base(tensor).l2, sizes)

    def access(self, number: int, read: Reads | np.bool_) -> TensorAccess:
        """The access of one tensor; `read` is of shape (experts, blocks), or one truth for all of them."""
        tensor = self._logical.tensors[number]
        grid = grid_of(tensor, self._block_bytes)
        count = len(tensor.experts)
        read = np.broadcast_to(read, (count, grid.count))
        expected, base_expected = ("",) * count, ""
        if self._indices and count and tensor.elements and tensor.assembly is None:
            expected = tuple(
                self._expected(tensor, expert, row & (block_costs(expert, grid) > 0))
                for expert, row in zip(tensor.experts, read, strict=True)
            )
            base = self.base(tensor).digest
            base_expected = fold_blocks(range(base.size), base.tolist())
        return TensorAccess(
            block=grid.block,
            reads=tuple(_bitmap(row) for row in read),
            facts=self._inlined[number],
            expected=expected,
            base_expected=base_expected,
            group_facts=self._grouped[number],
        )

    def _expected(self, tensor: TensorMerge, expert: ExpertTensor, read: NDArray[np.bool_]) -> str:
        digests = self.blocks(tensor, expert).digest
        numbers = np.flatnonzero(read)
        return fold_blocks(numbers.tolist(), digests[numbers].tolist())

    def _inline(self, tensor: TensorMerge, facts: Mapping[Wanted, Fact]) -> tuple[tuple[Fact, ...], ...]:
        if not tensor.experts or not tensor.elements:
            return tuple(() for _ in tensor.experts)
        needs = self._operator.needs(tensor_spec(self._logical, tensor))
        return tuple(
            tuple(facts[Wanted(self._pairs[tensor.base_input, expert.input], tensor.name, need)] for need in wanted)
            for expert, wanted in zip(tensor.experts, needs, strict=True)
        )

    def _inline_group(self, tensor: TensorMerge, group_facts: Mapping[WantedGroup, GroupFact]) -> tuple[GroupFact, ...]:
        wants = _group_wants(self._logical, self._pairs, self._operator, tensor)
        return tuple(group_facts[wanted] for wanted in wants)


def _pair_numbers(logical: LogicalPlan) -> dict[PairKey, int]:
    """Which place each pair has; looking for pairs goes through all experts of all tensors, so once is enough."""
    return {key: number for number, key in enumerate(logical.pairs)}


def _group_wants(
    logical: LogicalPlan, number: Mapping[PairKey, int], operator: Operator, tensor: TensorMerge
) -> list[WantedGroup]:
    if not tensor.experts or not tensor.elements:
        return []
    pairs = tuple(number[tensor.base_input, expert.input] for expert in tensor.experts)
    return [WantedGroup(pairs, tensor.name, need) for need in operator.group_needs(tensor_spec(logical, tensor))]


def _bitmap(read: NDArray[np.bool_]) -> str:
    if read.all():
        return ALL
    if not read.any():
        return NONE
    return np.packbits(read, bitorder="little").tobytes().hex()


def _select(
    logical: LogicalPlan,
    operator: Operator,
    evidence: Sequence[TensorEvidence],
    budget: Budget,
    policy: Policy,
    block_bytes: int,
) -> list[Reads]:
    """One row an expert; a model used twice in one tensor has a row for each use."""
    slots = [_slots(part.tensor) for part in evidence]
    rows = {slot: row for row, slot in enumerate(sorted({slot for each in slots for slot in each}))}
    blocks = sum(part.norms.shape[1] for part in evidence)
    worth = np.zeros((len(rows), blocks))
    cost = np.zeros((len(rows), blocks), np.int64)
    at = 0
    for part, each in zip(evidence, slots, strict=True):
        span = slice(at, at + part.norms.shape[1])
        gains = operator.gains(part.coefficients)
        for slot, expert, gain, norms in zip(each, part.tensor.experts, gains, part.norms, strict=True):
            if expert.input != 0:
                worth[rows[slot], span] = gain * norms
                cost[rows[slot], span] = block_costs(expert, grid_of(part.tensor, block_bytes))
        at = span.stop
    cap = int(cost.sum()) if budget.cap is None else budget.cap - required_bytes(logical)
    chosen = select(worth, cost, cap, budget.blocks, policy, logical.seed)
    reads = []
    at = 0
    for part, each in zip(evidence, slots, strict=True):
        span = slice(at, at + part.norms.shape[1])
        # The base's own bytes cost no budget: they are always read.
        read = [chosen[rows[slot], span] | (slot[0] == 0) for slot in each]
        reads.append(np.stack(read))
        at = span.stop
    return reads


def _slots(tensor: TensorMerge) -> list[tuple[int, int]]:
    """(input, which use of it in this tensor) for each expert."""
    seen: Counter[int] = Counter()
    slots = []
    for expert in tensor.experts:
        slots.append((expert.input, seen[expert.input]))
        seen[expert.input] += 1
    return slots


def _nonfinite(logical: LogicalPlan, known: _Known) -> list[str]:
    """Which inputs hold non-finite values in which tensors, as the indices know it."""
    found = []
    for tensor in logical.tensors:
        for number, expert in enumerate(tensor.experts if tensor.elements and tensor.assembly is None else ()):
            if number == 0 and (count := int(known.base(tensor).nonfinite.sum())):
                found.append(f"{logical.inputs[tensor.base_input].ref}: {tensor.base} has {count} non-finite values")
            elif count := int(known.blocks(tensor, expert).nonfinite.sum()):
                found.append(f"{logical.inputs[expert.input].ref}: {expert.name} has {count} non-finite values")
    return found
