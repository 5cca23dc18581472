"""The corridor from model folders to a merged file, for tests, with block facts by plain numpy instead of an index."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.core.dtypes import decode, dtype
from mergepipe.core.leaves import block_digest, leaf_digests
from mergepipe.execute.combine import workspace_bytes
from mergepipe.execute.local import run_locally
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Pair, PairTensor, Wanted
from mergepipe.manifest.model import Receipt
from mergepipe.operators.contract import Grain, Operator
from mergepipe.operators.registry import operator as find_operator
from mergepipe.plan.access import AccessPlan, choose, wanted_facts
from mergepipe.plan.bind import bind
from mergepipe.plan.budget import Budget, parse_budget
from mergepipe.plan.compose import Composition, compose
from mergepipe.plan.cost import full_bytes, largest_block
from mergepipe.plan.family import FamilyRules
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.pairs import index_pairs
from mergepipe.plan.schedule import Limits, Schedule, lay_out
from mergepipe.plan.select import Policy
from mergepipe.recipe.model import InputModel, ModelRef, Recipe, Setting
from mergepipe.stats.contract import Fact
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import read_tensors
from mergepipe.testing.operators import fact_of

Tensors = Mapping[str, tuple[str, bytes, tuple[int, ...]]]
SMALL_LIMITS = Limits(memory=64 << 20, readers=2, workers=2)


@dataclass(frozen=True, slots=True)
class Corridor:
    """One merge up to its logical plan: what `choose`, `lay_out` and `run_locally` take."""

    composition: Composition
    operator: Operator
    logical: LogicalPlan
    block_bytes: int

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self.composition.models

    def budget(self, text: str | None) -> Budget:
        """The budget `text` against this merge's full read."""
        return parse_budget(text, full_bytes(self.logical), largest_block(self.logical, self.block_bytes))

    def indices(self) -> list[DeltaIndex]:
        """One index an expert."""
        return [index_of(pair) for pair in index_pairs(self.composition, self.block_bytes)]

    def facts(self) -> dict[Wanted, Fact]:
        """Every fact the method wants."""
        pairs = index_pairs(self.composition, self.block_bytes)
        files = [(read_tensors(Path(pair.base.url)), read_tensors(Path(pair.expert.url))) for pair in pairs]
        found = {}
        for wanted in wanted_facts(self.logical, self.operator):
            tensor = next(each for each in pairs[wanted.pair].tensors if each.name == wanted.tensor)
            found[wanted] = fact_of(wanted.need, _delta(tensor, *files[wanted.pair]))
        return found

    def choose(
        self,
        budget: str | None = None,
        policy: Policy = Policy.NORM,
        allow_nonfinite: bool = False,
        indexed: bool | None = None,
    ) -> AccessPlan:
        """The access plan at `budget`, with indices where it needs them (or as `indexed` says)."""
        limit = self.budget(budget)
        if indexed is None:
            indexed = limit.cap is not None
        indices = self.indices() if indexed else []
        return choose(
            self.logical, self.operator, self.facts(), indices, limit, policy, self.block_bytes, allow_nonfinite
        )

    def lay_out(self, plan: AccessPlan, limits: Limits = SMALL_LIMITS) -> Schedule:
        """The schedule, with the workers' temporaries taken off the memory."""
        scratch = limits.workers * workspace_bytes(self.operator, plan, limits)
        return lay_out(plan, self.checkpoints, limits, scratch, self.operator.grain is Grain.ROW)

    def run(self, plan: AccessPlan, folder: Path, limits: Limits = SMALL_LIMITS) -> tuple[Receipt, ...]:
        """Execute the plan into `folder`, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        schedule = self.lay_out(plan, limits)
        return run_locally(
            plan, self.operator, schedule, self.checkpoints, limits, folder, {}, lambda _: None, lambda _: None
        )


def corridor(
    base: Path,
    experts: Sequence[Path],
    method: str = "task_arithmetic",
    merge: Mapping[str, Setting] | None = None,
    models: Sequence[Mapping[str, Setting]] | None = None,
    out_dtype: str | None = None,
    seed: int = 0,
    rules: FamilyRules = FamilyRules(),
    block_bytes: int = 1 << 20,
    shard_bytes: int = 5 * 10**9,
) -> Corridor:
    """Open, align and bind. `models` are the experts' parameters (by default weights 0.5, 0.4, …)."""
    operator = find_operator(method)
    given = models or [{"weight": round(0.5 - 0.1 * (number % 4), 1)} for number in range(len(experts))]
    recipe = Recipe(
        method=method,
        models=tuple(InputModel(ModelRef(str(path)), each) for path, each in zip(experts, given, strict=True)),
        base=ModelRef(str(base)),
        parameters=merge or {},
        out_dtype=out_dtype,
    )
    meter = Meter()
    opened = [open_checkpoint(str(path), meter) for path in (base, *experts)]
    composition = compose(recipe, operator, opened, rules)
    composition.require_aligned()
    return Corridor(composition, operator, bind(recipe, composition, operator, seed, shard_bytes), block_bytes)


def index_of(pair: Pair) -> DeltaIndex:
    """All block facts of a pair, block by block from the whole files."""
    base_files, expert_files = read_tensors(Path(pair.base.url)), read_tensors(Path(pair.expert.url))
    blocks: dict[str, BlockFacts] = {}
    bases: dict[str, BaseFacts] = {}
    for tensor in pair.tensors:
        delta = _delta(tensor, base_files, expert_files)
        base = _values(base_files[tensor.base.name])
        spans = [(at, min(at + tensor.block, base.size)) for at in range(0, base.size, tensor.block)]
        base_raw, raw = base_files[tensor.base.name][1], expert_files[tensor.expert.name][1]
        blocks[tensor.name] = BlockFacts(
            l2=_each(spans, lambda a, b, d=delta: math.sqrt(math.fsum(_finite(d[a:b]) ** 2))),
            linf=_each(spans, lambda a, b, d=delta: np.abs(_finite(d[a:b])).max(initial=0.0)),
            l1=_each(spans, lambda a, b, d=delta: math.fsum(np.abs(_finite(d[a:b])))),
            nonzero=_each(spans, lambda a, b, d=delta: np.count_nonzero(d[a:b]), np.int64),
            nonfinite=_each(spans, lambda a, b, d=delta: np.count_nonzero(~np.isfinite(d[a:b])), np.int64),
            dot=_each(spans, lambda a, b, d=delta, t=base: math.fsum(_finite(d[a:b] * t[a:b]))),
            digest=_digests(spans, raw, tensor.expert.storage.itemsize, tensor.elements),
        )
        bases[tensor.name] = BaseFacts(
            l2=_each(spans, lambda a, b, t=base: math.sqrt(math.fsum(_finite(t[a:b]) ** 2))),
            linf=_each(spans, lambda a, b, t=base: np.abs(_finite(t[a:b])).max(initial=0.0)),
            nonfinite=_each(spans, lambda a, b, t=base: np.count_nonzero(~np.isfinite(t[a:b])), np.int64),
            digest=_digests(spans, base_raw, tensor.base.storage.itemsize, base.size),
        )
    return DeltaIndex(blocks, bases, "content", "base content", "memory")


def _each(spans: Sequence[tuple[int, int]], fact: Any, kind: Any = np.float64) -> NDArray[Any]:
    return np.array([fact(start, stop) for start, stop in spans], kind)


def _digests(spans: Sequence[tuple[int, int]], raw: bytes, size: int, covered: int) -> NDArray[np.uint64]:
    stored = np.frombuffer(raw, np.uint8)
    digests = [
        block_digest(leaf_digests(stored[start * size : min(stop, covered) * size], size)) if start < covered else 0
        for start, stop in spans
    ]
    return np.array(digests, np.uint64)


def _delta(tensor: PairTensor, base_files: Tensors, expert_files: Tensors) -> NDArray[np.float64]:
    """The task vector as execution computes it, zero beyond what the expert covers, in float64."""
    base, expert = base_files[tensor.base.name], expert_files[tensor.expert.name]
    kind: type[np.floating[Any]] = np.float64 if "F64" in (base[0], expert[0]) else np.float32
    delta = np.zeros(tensor.base.elements, np.float64)
    theta = _values(base).astype(kind)[: tensor.elements]
    with np.errstate(invalid="ignore"):
        delta[: tensor.elements] = _values(expert).astype(kind)[: tensor.elements] - theta
    return delta


def _values(stored: tuple[str, bytes, tuple[int, ...]]) -> NDArray[np.float64]:
    kind = dtype(stored[0])
    raw = np.frombuffer(stored[1], np.uint8)
    values: NDArray[np.float64] = np.empty(raw.size // kind.itemsize, np.float64)
    decode(raw, kind, values)
    return values


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
