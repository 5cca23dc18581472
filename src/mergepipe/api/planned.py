"""An access plan laid out for its models: everything decided, no expert read for the merge yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from mergepipe.api.knowledge import know
from mergepipe.api.observer import SILENT, Observer
from mergepipe.api.options import IndexOptions, PlanOptions
from mergepipe.api.prepared import Prepared, bind_prepared, prepare
from mergepipe.checkpoint.model import Checkpoint
from mergepipe.core.units import format_bytes
from mergepipe.errors import UsageError
from mergepipe.execute.assemble import filling_bytes
from mergepipe.execute.buffers import differing_buffers
from mergepipe.execute.combine import workspace_bytes
from mergepipe.index.padding import mean_rows, padding_bytes
from mergepipe.operators.contract import Grain, Operator
from mergepipe.plan.access import AccessPlan, choose
from mergepipe.plan.budget import Budget, parse_budget
from mergepipe.plan.cost import full_bytes, largest_block
from mergepipe.plan.feasible import require_feasible
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.padding import is_padded, with_padding
from mergepipe.plan.pairs import assembled
from mergepipe.plan.schedule import Limits, Schedule, lay_out
from mergepipe.recipe.model import Recipe
from mergepipe.recipe.parse import load_recipe
from mergepipe.report.model import Seconds, plan_result


@dataclass(frozen=True, slots=True)
class Planned:
    """An access plan that fits its inputs, its budget and the memory limit, and what making it took."""

    plan: AccessPlan
    operator: Operator
    schedule: Schedule
    checkpoints: tuple[Checkpoint, ...]
    recipe: str
    index_bytes: int
    contents: tuple[str | None, ...]
    seconds: Seconds

    @property
    def result(self) -> dict[str, Any]:
        """Design §7's object, without what only a run knows."""
        return plan_result(self.plan, self.schedule.expert_bytes, self.index_bytes, self.seconds)


def plan(
    config: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> Planned:
    """Decide which expert blocks to read. Builds or reuses the index where the budget or method needs it."""
    return plan_recipe(load_recipe(config), config.parent, options, index, limits, observer)


def plan_recipe(
    recipe: Recipe, folder: Path, options: PlanOptions, index: IndexOptions, limits: Limits, observer: Observer
) -> Planned:
    """`plan`, of a recipe read already; relative paths in it are from `folder`."""
    prepared = prepare(recipe, folder, options.rules)
    prepared.composition.require_aligned()
    started = perf_counter()
    logical = bind_prepared(prepared, options)
    budget = _budget(logical, prepared.operator, options.budget, options.block_bytes)
    logical = _padded(_remarked(logical, prepared, observer), prepared, index, limits, observer)
    knowledge = know(prepared, logical, budget, options, index, limits, observer)
    indexed = perf_counter()
    access = choose(
        logical,
        prepared.operator,
        knowledge.facts,
        knowledge.indices,
        budget,
        options.policy,
        options.block_bytes,
        options.allow_nonfinite,
        knowledge.group_facts,
    )
    schedule = schedule_of(access, prepared.operator, prepared.checkpoints, limits)
    return Planned(
        plan=access,
        operator=prepared.operator,
        schedule=schedule,
        checkpoints=prepared.checkpoints,
        recipe=prepared.recipe.text,
        index_bytes=knowledge.index_bytes,
        contents=(None, *(each.content_digest for each in knowledge.indices)) if knowledge.indices else (),
        seconds=Seconds(index=indexed - started, plan=perf_counter() - indexed),
    )


def require_budgets(config: Path, budgets: Sequence[str], options: PlanOptions = PlanOptions()) -> None:
    """Refuse budgets that no plan of the recipe can keep, as `plan` would. Reads headers and tokenizers only."""
    prepared = prepare(load_recipe(config), config.parent, options.rules)
    prepared.composition.require_aligned()
    logical = bind_prepared(prepared, options)
    for text in budgets:
        _budget(logical, prepared.operator, text, options.block_bytes)


def _budget(logical: LogicalPlan, operator: Operator, text: str | None, block_bytes: int) -> Budget:
    """The budget, which can be kept as far as headers tell: asked before any weight is read, for facts too."""
    budget = parse_budget(text, full_bytes(logical), largest_block(logical, block_bytes))
    require_feasible(logical, operator, budget, block_bytes)
    return budget


def _remarked(logical: LogicalPlan, prepared: Prepared, observer: Observer) -> LogicalPlan:
    """The plan with all remarks, told to `observer`: the recipe's, its own, and on buffers that are copied."""
    base, *experts = prepared.checkpoints
    copied = [tensor.base for tensor in logical.tensors if tensor.copied and tensor.base_input == 0]
    remarks = differing_buffers(base, experts, copied, prepared.meter)
    logical = replace(logical, notes=(*prepared.recipe.notes, *logical.notes, *remarks))
    for note in logical.notes:
        observer.note(note)
    return logical


def _padded(
    logical: LogicalPlan, prepared: Prepared, index: IndexOptions, limits: Limits, observer: Observer
) -> LogicalPlan:
    """The plan with the padding rows of assembled tensors: means over whole tensors, which are read for it."""
    tensors = []
    for tensor in logical.tensors:
        if tensor.assembly is not None and is_padded(logical, tensor):
            parts = assembled(logical, tensor, prepared.checkpoints)
            why, size = f"{tensor.name}: padding rows are means of all rows", format_bytes(padding_bytes(parts))
            if not index.reads:
                raise UsageError(
                    f"{why}; {size} would have to be read for this (INDEX), which --no-index-reads forbids. "
                    "No index helps: leave it out, or merge from a plan made without it (--plan)"
                )
            observer.note(f"{why}: reading {size} (INDEX) first, as in every run")
            means = mean_rows(parts, prepared.checkpoints, prepared.meter, limits.memory)
            tensor = with_padding(tensor, means)
        tensors.append(tensor)
    return replace(logical, tensors=tuple(tensors))


def schedule_of(access: AccessPlan, operator: Operator, checkpoints: Sequence[Checkpoint], limits: Limits) -> Schedule:
    """The access plan laid out within `limits`, scratch memory of workers and assembled tensors included."""
    scratch = limits.workers * workspace_bytes(operator, access, limits) + filling_bytes(access.logical, limits)
    return lay_out(access, checkpoints, limits, scratch, operator.grain is Grain.ROW)
