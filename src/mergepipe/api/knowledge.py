"""What is known of the experts before choosing: looked up in the index, or read now and charged to INDEX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mergepipe.api.observer import SILENT, Observer
from mergepipe.api.options import IndexOptions, PlanOptions
from mergepipe.api.prepared import Prepared, bind_prepared, prepare
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.checkpoint.quantised import refuse_quantised
from mergepipe.core.units import format_bytes
from mergepipe.errors import UsageError
from mergepipe.index.build import ensure
from mergepipe.index.groups import GroupSurvey, gather, survey_groups
from mergepipe.index.model import Knowledge, Wanted, WantedGroup
from mergepipe.index.survey import Survey, survey
from mergepipe.operators.contract import Operator
from mergepipe.plan.access import wanted_facts, wanted_group_facts
from mergepipe.plan.budget import Budget
from mergepipe.plan.compose import compose_models
from mergepipe.plan.cost import full_bytes
from mergepipe.plan.family import align
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.pairs import assembled_pairs, index_pairs
from mergepipe.plan.schedule import Limits
from mergepipe.recipe.parse import load_recipe
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
    composition.require_aligned()
    pairs = index_pairs(composition, options.block_bytes)
    found = survey(pairs, [], True, index.shelf)
    return ensure(found, meter, limits.memory, limits.workers, observer.progress, index.reads)


def build_index_of(
    config: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> Knowledge:
    """Index the models of a recipe, and learn what else its method must know of them, as far as that is kept."""
    prepared = prepare(load_recipe(config), config.parent, options.rules)
    prepared.composition.require_aligned()
    kept, by_token = _needs(bind_prepared(prepared, options), prepared.operator)
    pairs = index_pairs(prepared.composition, options.block_bytes)
    meter, memory, workers, progress = prepared.meter, limits.memory, limits.workers, observer.progress
    singly = survey(pairs, kept.single, True, index.shelf)
    own = ensure(singly, meter, memory, workers, progress, index.reads)
    together = survey_groups(pairs, kept.together, index.shelf)
    joint = gather(together, meter, memory, workers, progress, index.reads)
    for note in (*own.notes, *joint.notes):
        observer.note(note)
    if by_token:
        observer.note(f"{by_token.why_read}: each merge reads for them")
    return replace(
        own,
        group_facts=joint.group_facts,
        index_bytes=own.index_bytes + joint.index_bytes,
        reused=(*own.reused, *joint.reused),
        built=(*own.built, *joint.built),
    )


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
    kept, by_token = _needs(logical, prepared.operator)
    if not capped and not kept and not by_token:
        return Knowledge(index_bytes=prepared.meter.spent().bytes[Purpose.INDEX])
    pairs = index_pairs(prepared.composition, options.block_bytes)
    rows = assembled_pairs(logical, prepared.checkpoints, options.block_bytes)
    full = full_bytes(logical) + sum(len(t.extent) for t in prepared.checkpoints[0].tensors.values())
    # Each index file is opened once: what is found is announced, and then handed on.
    singly = survey(pairs, kept.single, capped, index.shelf) if capped or kept.single else None
    together = survey_groups(pairs, kept.together, index.shelf)
    rows_singly = survey(rows, by_token.single, False, None)
    rows_together = survey_groups(rows, by_token.together, None)
    memory, workers = limits.memory, limits.workers
    for text in (
        *_announced(singly, together, memory, workers),
        *_announced_of_rows(rows_singly, rows_together, by_token, index, memory, workers),
    ):
        observer.note(f"{text}; the full-read merge itself reads {format_bytes(full)}")
    meter, progress = prepared.meter, observer.progress
    joint, joint_rows = (
        gather(each, meter, memory, workers, progress, index.reads) for each in (together, rows_together)
    )
    of_rows = ensure(rows_singly, meter, memory, workers, progress, index.reads)
    own = Knowledge() if singly is None else ensure(singly, meter, memory, workers, progress, index.reads)
    for note in (*joint.notes, *own.notes):
        observer.note(note)
    return replace(
        own,
        facts={**own.facts, **of_rows.facts},
        group_facts={**joint.group_facts, **joint_rows.group_facts},
        index_bytes=meter.spent().bytes[Purpose.INDEX],
    )


@dataclass(frozen=True, slots=True)
class _Needs:
    """What a method asks of single experts, and of several together."""

    single: Sequence[Wanted]
    together: Sequence[WantedGroup]

    def __bool__(self) -> bool:
        return bool(self.single or self.together)

    @property
    def why_read(self) -> str:
        """Of needs of tensors that are put together by token: which, and that their answers are not kept."""
        names = sorted({each.tensor for each in self.single} | {each.tensor for each in self.together})
        return f"facts of {', '.join(names)}, whose rows are put in order by token, are never kept"


def _needs(logical: LogicalPlan, operator: Operator) -> tuple[_Needs, _Needs]:
    """Needs of tensors as files have them, whose answers are kept; of those put together by token, which are not."""
    by_token = {tensor.name for tensor in logical.tensors if tensor.assembly is not None}
    single, together = wanted_facts(logical, operator), wanted_group_facts(logical, operator)
    kept, computed = (
        _Needs(
            [each for each in single if (each.tensor in by_token) is assembled],
            [each for each in together if (each.tensor in by_token) is assembled],
        )
        for assembled in (False, True)
    )
    return kept, computed


def _announced(singly: Survey | None, together: GroupSurvey, memory: int, workers: int) -> list[str]:
    """What will be read for facts that are kept, and why."""
    own = 0 if singly is None else singly.cost(memory, workers)
    cost = own + together.cost(memory, workers)
    if not cost:
        return []
    unindexed = own and singly is not None and singly.unindexed
    why = "no index of these models yet" if unindexed else "facts of whole tensors are needed"
    return [f"{why}: reading {format_bytes(cost)} (INDEX) first"]


def _announced_of_rows(
    singly: Survey, together: GroupSurvey, needs: _Needs, index: IndexOptions, memory: int, workers: int
) -> list[str]:
    """The same for tensors put together by token. Raises `UsageError`: where it is forbidden no index would help."""
    cost = singly.cost(memory, workers) + together.cost(memory, workers)
    if not cost:
        return []
    if not index.reads:
        raise UsageError(
            f"{needs.why_read}: {format_bytes(cost)} would have to be read for them (INDEX), which "
            "--no-index-reads forbids. No index helps: leave it out, or plan where reading is allowed "
            "(`mergepipe plan … -o plan.json`) and merge with --plan plan.json, which has them"
        )
    return [f"{needs.why_read}: reading {format_bytes(cost)} (INDEX) first, as in every run"]
