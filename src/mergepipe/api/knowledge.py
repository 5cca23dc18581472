"""What is known of the experts before choosing: looked up in the index, or read now and charged to INDEX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mergepipe.api.observer import SILENT, Observer
from mergepipe.api.options import IndexOptions, PlanOptions
from mergepipe.api.prepared import Prepared, prepare
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.checkpoint.quantised import refuse_quantised
from mergepipe.core.units import format_bytes
from mergepipe.index.build import cost_to_ensure, ensure
from mergepipe.index.groups import gather, group_cost
from mergepipe.index.model import Knowledge, Wanted
from mergepipe.plan.access import wanted_facts, wanted_group_facts
from mergepipe.plan.budget import Budget
from mergepipe.plan.compose import Composition, compose_models
from mergepipe.plan.cost import full_bytes
from mergepipe.plan.family import align
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.pairs import assembled_pairs, index_pairs
from mergepipe.plan.schedule import Limits
from mergepipe.recipe.parse import load_recipe
from mergepipe.stats.contract import Fact
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter


def build_index(
    base: str,
    experts: Sequence[str],
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> Knowledge:
    """Index experts against their base, for later merges under a budget."""
    meter = Meter()
    opened = [open_checkpoint(ref, meter) for ref in (base, *experts)]
    for checkpoint in opened:
        refuse_quantised(checkpoint)
    composition = compose_models(align(opened[0], opened[1:], options.rules), {}, None, [{} for _ in experts])
    return _index(composition, meter, options, index, limits, observer)


def build_index_of(
    config: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> Knowledge:
    """Index the models of a recipe."""
    prepared = prepare(load_recipe(config), config.parent, options.rules)
    return _index(prepared.composition, prepared.meter, options, index, limits, observer)


def know(
    prepared: Prepared,
    logical: LogicalPlan,
    budget: Budget,
    options: PlanOptions,
    index: IndexOptions,
    limits: Limits,
    observer: Observer,
) -> Knowledge:
    """Facts, index and group facts that the plan needs; INDEX reads are announced to `observer` first.

    Raises `UsageError` where something would have to be read and `index.reads` forbids it.
    """
    capped = budget.cap is not None or budget.blocks is not None
    together = wanted_group_facts(logical, prepared.operator)
    wanted = wanted_facts(logical, prepared.operator)
    index_bytes = prepared.meter.spent().bytes[Purpose.INDEX]
    if not capped and not wanted and not together:
        return Knowledge(index_bytes=index_bytes)
    pairs = index_pairs(prepared.composition, options.block_bytes)
    rows = assembled_pairs(logical, prepared.checkpoints, options.block_bytes)
    by_rows = {tensor.name for tensor in logical.tensors if tensor.assembly is not None}
    wanted_rows = [each for each in wanted if each.tensor in by_rows]
    together_rows = [each for each in together if each.tensor in by_rows]
    wanted = [each for each in wanted if each.tensor not in by_rows]
    together = [each for each in together if each.tensor not in by_rows]
    own = cost_to_ensure(pairs, wanted, capped, index.shelf, limits.memory, limits.workers)
    cost = own + cost_to_ensure(rows, wanted_rows, False, None, limits.memory, limits.workers)
    cost += group_cost(pairs, together, index.shelf, limits.memory, limits.workers)
    cost += group_cost(rows, together_rows, None, limits.memory, limits.workers)
    if cost:
        full = full_bytes(logical) + sum(len(t.extent) for t in prepared.checkpoints[0].tensors.values())
        observer.note(
            f"{'no index of these models yet' if capped and own else 'facts of whole tensors are needed'}: "
            f"reading {format_bytes(cost)} (INDEX) first; the full-read merge itself reads {format_bytes(full)}"
        )
    joint, joint_rows = (
        gather(of, needs, shelf, prepared.meter, limits.memory, limits.workers, observer.progress, index.reads)
        for of, needs, shelf in ((pairs, together, index.shelf), (rows, together_rows, None))
    )
    group_facts = {**joint.group_facts, **joint_rows.group_facts}
    facts_of_rows: Mapping[Wanted, Fact] = {}
    if wanted_rows:
        facts_of_rows = ensure(
            rows,
            wanted_rows,
            False,
            None,
            prepared.meter,
            limits.memory,
            limits.workers,
            observer.progress,
            index.reads,
        ).facts
    knowledge = Knowledge()
    if capped or wanted:
        knowledge = ensure(
            pairs,
            wanted,
            capped,
            index.shelf,
            prepared.meter,
            limits.memory,
            limits.workers,
            observer.progress,
            index.reads,
        )
    index_bytes = prepared.meter.spent().bytes[Purpose.INDEX]
    for note in (*joint.notes, *knowledge.notes):
        observer.note(note)
    facts = {**knowledge.facts, **facts_of_rows}
    return replace(knowledge, facts=facts, group_facts=group_facts, index_bytes=index_bytes)


def _index(
    composition: Composition,
    meter: Meter,
    options: PlanOptions,
    index: IndexOptions,
    limits: Limits,
    observer: Observer,
) -> Knowledge:
    composition.require_aligned()
    pairs = index_pairs(composition, options.block_bytes)
    return ensure(pairs, [], True, index.shelf, meter, limits.memory, limits.workers, observer.progress, index.reads)
