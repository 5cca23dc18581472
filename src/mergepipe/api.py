"""The corridor: one function a verb, each a straight walk through the rooms.

    recipe → checkpoints → logical plan → index → access plan → schedule → shards → published model

`PlanOptions` may change the result and are recorded in the plan; `Limits` change speed only. Every
function raises the errors of `mergepipe.errors`; what has been written by then is a staging folder.
"""

from __future__ import annotations

import platform
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.checkpoint.quantised import refuse_quantised
from mergepipe.core.digest import digest_of
from mergepipe.core.dtypes import dtype
from mergepipe.core.units import format_bytes
from mergepipe.errors import ManifestMismatch, SourceError, UsageError
from mergepipe.execute.assemble import filling_bytes
from mergepipe.execute.buffers import differing_buffers
from mergepipe.execute.combine import workspace_bytes
from mergepipe.execute.distance import stored_distance
from mergepipe.execute.local import run_locally
from mergepipe.index.build import cost_to_ensure, ensure
from mergepipe.index.groups import gather, group_cost
from mergepipe.index.model import Knowledge, Wanted
from mergepipe.index.padding import mean_rows, padding_bytes
from mergepipe.index.storage import Shelf, default_shelf
from mergepipe.manifest.encode import MANIFEST_NAME, decode
from mergepipe.manifest.model import FileRecord, Identity, InputRecord, Manifest, Receipt, Run
from mergepipe.operators.contract import Grain, Operator
from mergepipe.operators.registry import operator as find_operator
from mergepipe.plan.access import AccessPlan, choose, wanted_facts, wanted_group_facts
from mergepipe.plan.bind import bind
from mergepipe.plan.budget import Budget, parse_budget
from mergepipe.plan.compose import Composition, compose_models, input_models
from mergepipe.plan.cost import full_bytes, largest_block, output_bytes
from mergepipe.plan.encode import decode_plan, encode_plan, plan_from
from mergepipe.plan.explain import explain_plan
from mergepipe.plan.family import FamilyRules, MissingRule, VocabularyRule, align
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.padding import is_padded, with_padding
from mergepipe.plan.pairs import assembled, assembled_pairs, index_pairs
from mergepipe.plan.schedule import Limits, Schedule, lay_out
from mergepipe.plan.select import Policy
from mergepipe.plan.vocabulary import compose_by_token, settle_vocabulary, tokenizer_donor, vocabulary_findings
from mergepipe.publish.commit import check_output, commit
from mergepipe.publish.disk import LocalDisk, writing
from mergepipe.publish.lock import output_lock
from mergepipe.publish.record import file_record
from mergepipe.publish.space import require_space
from mergepipe.publish.staging import Staging, open_staging
from mergepipe.publish.verify import VerifyReport
from mergepipe.publish.verify import verify as verify_files
from mergepipe.recipe.model import ModelRef, Recipe
from mergepipe.recipe.parse import load_recipe, load_recipes, resolve_path
from mergepipe.recipe.stages import in_order, with_stages
from mergepipe.report.model import Seconds, merge_result, plan_result, reads_of
from mergepipe.report.text import bound_line
from mergepipe.sidecar.card import CardFields, model_card
from mergepipe.sidecar.config import config_text, output_config
from mergepipe.sidecar.files import copy_sidecars, sidecar_files
from mergepipe.sidecar.gather import chat_template, gather_tokenizers, require_loadable
from mergepipe.sidecar.tokenizer_files import tokenizer_texts
from mergepipe.sidecar.tokens import Place
from mergepipe.sidecar.weights_index import NAME as WEIGHTS_INDEX
from mergepipe.sidecar.weights_index import weights_index
from mergepipe.stats.contract import Fact
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

__all__ = [
    "SILENT", "FamilyRules", "IndexOptions", "Limits", "MissingRule", "Observer", "PlanOptions", "Planned", "Policy",
    "VocabularyRule", "bound_object", "build_index", "build_index_of", "check", "distance", "explain", "load_manifest",
    "load_plan", "measured_sweep", "merge", "merge_planned", "plan", "recorded_plan", "replay", "save_plan", "sweep",
    "verify",
]  # fmt: skip


class Observer(Protocol):
    """Told what is going on; changes nothing. `progress` counts bytes of a named stage."""

    def note(self, text: str) -> None: ...

    def progress(self, stage: str, done: int, total: int) -> None: ...


class Silent:
    """An observer that keeps nothing."""

    def note(self, text: str) -> None:
        """Not kept."""

    def progress(self, stage: str, done: int, total: int) -> None:
        """Not kept."""


SILENT = Silent()


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a user chooses beside the recipe; all of it may change the result.

    `budget` is a share, a size or a number of blocks (None: full read). `block_bytes` and
    `shard_bytes` are the sizes of index blocks and output files. `seed` overrides the recipe's.
    """

    budget: str | None = None
    policy: Policy = Policy.NORM
    seed: int | None = None
    block_bytes: int = 1 << 20
    shard_bytes: int = 5 * 10**9
    rules: FamilyRules = FamilyRules()
    allow_nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Where index files are kept (None: the user's cache) and whether reading for one is allowed."""

    folder: Path | None = None
    reads: bool = True

    @property
    def shelf(self) -> Shelf:
        return Shelf(default_shelf() if self.folder is None else self.folder)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recipe bound to opened models; nothing but headers has been read."""

    recipe: Recipe
    operator: Operator
    composition: Composition
    meter: Meter

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self.composition.models


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


def check(config: Path, rules: FamilyRules = FamilyRules()) -> Composition:
    """Open a recipe's models and align them. Reads headers and configs only; see `Composition.findings`."""
    return _prepare(load_recipe(config), config.parent, rules).composition


def plan(
    config: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> Planned:
    """Decide which expert blocks to read. Builds or reuses the index where the budget or method needs it."""
    return _plan(load_recipe(config), config.parent, options, index, limits, observer)


def _plan(
    recipe: Recipe, folder: Path, options: PlanOptions, index: IndexOptions, limits: Limits, observer: Observer
) -> Planned:
    prepared = _prepare(recipe, folder, options.rules)
    prepared.composition.require_aligned()
    started = perf_counter()
    logical = _padded(_bind(prepared, options, observer), prepared, index, limits)
    budget = parse_budget(options.budget, full_bytes(logical), largest_block(logical, options.block_bytes))
    knowledge = _know(prepared, logical, budget, options, index, limits, observer)
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
    schedule = _lay_out(access, prepared.operator, prepared.checkpoints, limits)
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


def merge(
    config: Path,
    out: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    overwrite: bool = False,
    observer: Observer = SILENT,
    intermediate: Path | None = None,
) -> Mapping[str, Any]:
    """Merge a recipe into OUT under a budget; returns design §7's result object.

    A file of several recipes is made in the order they need each other: those with a `name:` into
    `intermediate` (default: OUT's name with `.stages`), the one without into OUT. The result then has
    their results as `stages`; a budget is a share and holds for each.
    """
    check_output(out, overwrite, ())
    *stages, last = in_order(load_recipes(config), str(config))
    if stages and options.budget is not None and not options.budget.strip().endswith("%"):
        raise UsageError(
            f"--budget: {options.budget!r} for {len(stages) + 1} recipes in one file; give a share, as 30%"
        )
    folder = out.with_name(f"{out.name}.stages") if intermediate is None else intermediate
    places: dict[str, Path] = {}
    made = []
    for recipe in stages:
        place = folder / str(recipe.name)
        planned = _plan(with_stages(recipe, places), config.parent, options, index, limits, observer)
        made.append(_stage(planned, place, limits, overwrite, observer))
        places[str(recipe.name)] = place
    planned = _plan(with_stages(last, places), config.parent, options, index, limits, observer)
    result = _run(planned, out, limits, overwrite, observer, None)
    return {**result, "stages": made} if made else result


def _stage(planned: Planned, out: Path, limits: Limits, overwrite: bool, observer: Observer) -> Mapping[str, Any]:
    """Make an intermediate model, unless it is there already by the same plan from the same files."""
    if (out / MANIFEST_NAME).is_file():
        recorded = load_manifest(out)
        files = [each["files"] for each in recorded.run.inputs]
        same_files = files == [[asdict(file) for file in each.files] for each in planned.checkpoints]
        if recorded.identity.plan_digest == planned.plan.digest and same_files:
            observer.note(f"{out}: kept, it is the result of this plan already")
            return recorded.result
    return _run(planned, out, limits, overwrite, observer, None)


def merge_planned(
    plan_file: Path, out: Path, limits: Limits = Limits(), overwrite: bool = False, observer: Observer = SILENT
) -> Mapping[str, Any]:
    """Execute a saved plan. Raises `ManifestMismatch` if an input's header is not the planned one."""
    return _run(load_plan(plan_file, limits), out, limits, overwrite, observer, None)


def save_plan(planned: Planned, path: Path) -> None:
    """Write a plan as canonical JSON."""
    try:
        path.write_bytes(encode_plan(planned.plan, planned.recipe))
    except OSError as error:
        raise UsageError(f"{path}: the plan cannot be written: {error.strerror}") from error


def load_plan(path: Path, limits: Limits = Limits()) -> Planned:
    """Read a saved plan and open its inputs (headers only)."""
    access, recipe = decode_plan(_read(path), str(path))
    return _reopen(access, recipe, limits)


def replay(
    source: Path, out: Path, limits: Limits = Limits(), overwrite: bool = False, observer: Observer = SILENT
) -> Mapping[str, Any]:
    """Merge again exactly as a manifest records (a merged model, or its manifest file), into OUT.

    Raises `ManifestMismatch` naming the input that changed since; OUT does not exist then.
    """
    recorded = load_manifest(source)
    access = _recorded_plan(recorded, source)
    planned = _reopen(access, recorded.identity.recipe, limits)
    return _run(planned, out, limits, overwrite, observer, recorded)


def verify(out: Path) -> VerifyReport:
    """Hash every file of a merged model against its manifest."""
    return verify_files(out, Meter())


def load_manifest(source: Path) -> Manifest:
    """The manifest of a merged model, from its folder or the manifest file itself."""
    path = source / MANIFEST_NAME if source.is_dir() else source
    return decode(_read(path), str(path))


def recorded_plan(source: Path) -> AccessPlan:
    """The access plan of a plan file, a merged model or a manifest."""
    path = source / MANIFEST_NAME if source.is_dir() else source
    if path.name != MANIFEST_NAME:
        return decode_plan(_read(path), str(path))[0]
    return _recorded_plan(load_manifest(path), path)


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
    prepared = _prepare(load_recipe(config), config.parent, options.rules)
    return _index(prepared.composition, prepared.meter, options, index, limits, observer)


def measured_sweep(
    config: Path,
    budgets: Sequence[str],
    folder: Path,
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> list[Mapping[str, Any]]:
    """Merge one recipe at several budgets in `folder` and at full read; each result gains `true_error`."""
    full = folder / "full"
    merge(config, full, replace(options, budget=None), index, limits, observer=observer)
    results: list[Mapping[str, Any]] = []
    for number, budget in enumerate(budgets):
        out = folder / f"budget-{number}"
        result = merge(config, out, replace(options, budget=budget), index, limits, observer=observer)
        results.append({**result, "true_error": distance(out, full)})
        shutil.rmtree(out)
    return results


def distance(left: Path, right: Path) -> float:
    """‖θ_left − θ_right‖₂ over all float tensors of two models of the same tensors, as stored."""
    meter = Meter()
    return stored_distance(open_checkpoint(str(left), meter), open_checkpoint(str(right), meter), meter)


def explain(access: AccessPlan) -> Iterator[str]:
    """A plan as text: what is read from whom and where, and its bound."""
    yield from explain_plan(access)
    yield f"bound {bound_line(bound_object(access))}"


def sweep(
    config: Path,
    budgets: Sequence[str],
    options: PlanOptions = PlanOptions(),
    index: IndexOptions = IndexOptions(),
    limits: Limits = Limits(),
    observer: Observer = SILENT,
) -> list[Mapping[str, Any]]:
    """Plan one recipe at several budgets; each entry is `plan`'s result object."""
    return [plan(config, replace(options, budget=each), index, limits, observer).result for each in budgets]


def bound_object(access: AccessPlan) -> Mapping[str, Any]:
    """A plan's bound as result objects hold it."""
    return asdict(access.bound)


# --- the rooms, in order ------------------------------------------------------------------------


def _prepare(recipe: Recipe, folder: Path, rules: FamilyRules) -> Prepared:
    operator = find_operator(recipe.method, recipe.variant)
    meter = Meter()
    refs = input_models(recipe, operator)
    models = [open_checkpoint(resolve_path(ref, folder).path, meter) for ref in refs]
    for model in models:
        refuse_quantised(model)
    return Prepared(recipe, operator, _compose(recipe, folder, operator, refs, models, rules, meter), meter)


def _compose(
    recipe: Recipe,
    folder: Path,
    operator: Operator,
    refs: Sequence[ModelRef],
    models: Sequence[Checkpoint],
    rules: FamilyRules,
    meter: Meter,
) -> Composition:
    """Read the tokenizers and compose; the recipe's tokenizer and chat template are settled then."""
    places = [Place(model.ref, model.url) for model in models]
    donor = tokenizer_donor(recipe, refs)
    there = None if donor is None else Place(str(donor), resolve_path(donor, folder).path)
    tokenizers = gather_tokenizers(places, there, recipe.tokenizer is None, meter)
    vocabulary = settle_vocabulary(recipe, refs, models, tokenizers)
    findings = vocabulary_findings(recipe, models, tokenizers)
    composition = compose_by_token(recipe, operator, models, rules, vocabulary, findings)
    if vocabulary is not None and vocabulary.files.added:
        number = vocabulary.files.input
        source = tokenizers.donor_place if number is None else places[number]
        require_loadable(vocabulary.files, vocabulary.output.ids, source, meter)
    if recipe.chat_template is None:
        return composition
    path = resolve_path(ModelRef(recipe.chat_template), folder).path
    template = chat_template(recipe.chat_template, places, path, meter)
    return replace(composition, tokenizer=replace(composition.tokenizer, chat_template=template))


def _bind(prepared: Prepared, options: PlanOptions, observer: Observer) -> LogicalPlan:
    recipe = prepared.recipe
    seed = options.seed if options.seed is not None else (recipe.seed or 0)
    logical = bind(recipe, prepared.composition, prepared.operator, seed, options.shard_bytes)
    base, *experts = prepared.checkpoints
    copied = [tensor.base for tensor in logical.tensors if tensor.copied and tensor.base_input == 0]
    remarks = differing_buffers(base, experts, copied, prepared.meter)
    logical = replace(logical, notes=(*recipe.notes, *logical.notes, *remarks))
    for note in logical.notes:
        observer.note(note)
    return logical


def _padded(logical: LogicalPlan, prepared: Prepared, index: IndexOptions, limits: Limits) -> LogicalPlan:
    """The plan with the padding rows of assembled tensors: means over whole tensors, which are read for it."""
    tensors = []
    for tensor in logical.tensors:
        if tensor.assembly is not None and is_padded(logical, tensor):
            parts = assembled(logical, tensor, prepared.checkpoints)
            if not index.reads:
                raise UsageError(
                    f"{tensor.name}: padding rows are means of all rows; {format_bytes(padding_bytes(parts))} would "
                    "have to be read for this (INDEX), which --no-index-reads forbids"
                )
            means = mean_rows(parts, prepared.checkpoints, prepared.meter, limits.memory)
            tensor = with_padding(tensor, means)
        tensors.append(tensor)
    return replace(logical, tensors=tuple(tensors))


def _know(
    prepared: Prepared,
    logical: LogicalPlan,
    budget: Budget,
    options: PlanOptions,
    index: IndexOptions,
    limits: Limits,
    observer: Observer,
) -> Knowledge:
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


def _lay_out(access: AccessPlan, operator: Operator, checkpoints: Sequence[Checkpoint], limits: Limits) -> Schedule:
    scratch = limits.workers * workspace_bytes(operator, access, limits) + filling_bytes(access.logical, limits)
    return lay_out(access, checkpoints, limits, scratch, operator.grain is Grain.ROW)


def _reopen(access: AccessPlan, recipe: str, limits: Limits) -> Planned:
    started = perf_counter()
    meter = Meter()
    checkpoints = tuple(open_checkpoint(each.url, meter) for each in access.logical.inputs)
    checkpoints = tuple(
        replace(found, ref=each.ref) for found, each in zip(checkpoints, access.logical.inputs, strict=True)
    )
    operator = find_operator(access.logical.method)
    schedule = _lay_out(access, operator, checkpoints, limits)
    return Planned(access, operator, schedule, checkpoints, recipe, 0, (), Seconds(plan=perf_counter() - started))


def _recorded_plan(recorded: Manifest, source: Path) -> AccessPlan:
    access = plan_from(recorded.identity.plan, str(source))
    if access.digest != recorded.identity.plan_digest:
        raise ManifestMismatch(
            f"{source}: the plan's digest is {access.digest}, the manifest says {recorded.identity.plan_digest}: "
            "the manifest was edited or damaged"
        )
    urls = [str(each["url"]) for each in recorded.run.inputs]
    inputs = tuple(replace(each, url=url) for each, url in zip(access.logical.inputs, urls, strict=True))
    tokenizer = replace(access.logical.tokenizer, url=recorded.run.tokenizer)
    return replace(access, logical=replace(access.logical, inputs=inputs, tokenizer=tokenizer))


def _run(
    planned: Planned,
    out: Path,
    limits: Limits,
    overwrite: bool,
    observer: Observer,
    recorded: Manifest | None,
) -> Mapping[str, Any]:
    """Doors 8–10: stage, execute, publish. With `recorded`, the result must be what that manifest says."""
    started = datetime.now(UTC)
    disk = LocalDisk()
    check_output(out, overwrite, [Path(each.url) for each in planned.checkpoints])
    with output_lock(out):
        check_output(out, overwrite, [Path(each.url) for each in planned.checkpoints])
        staging = open_staging(out, planned.plan.digest.removeprefix("sha256:"), _inputs_key(planned), disk)
        begun = perf_counter()
        receipts = _execute(planned, out, staging, limits, observer)
        executed = perf_counter()
        inputs = _input_records(planned, receipts)
        if recorded is not None:
            _require_same_inputs(recorded, inputs)
        sidecars = _write_sidecars(planned, staging, receipts)
        files = tuple(sorted((*(r.file for r in receipts), *sidecars), key=lambda record: record.name))
        if recorded is not None:
            _require_same_files(recorded, files)
        identity = Identity(
            recipe=planned.recipe,
            method=planned.plan.logical.method,
            seed=planned.plan.logical.seed,
            plan_digest=planned.plan.digest,
            plan=planned.plan.identity,
            inputs=inputs,
            files=files,
            numerics=NUMERICS,
        )
        if recorded is not None:
            identity = replace(identity, inputs=recorded.identity.inputs)
        seconds = replace(planned.seconds, execute=executed - begun)
        result = merge_result(
            {**planned.result, "seconds": asdict(seconds)},
            str(out),
            str(out / MANIFEST_NAME),
            reads_of(receipts),
            _peak_rss(),
        )
        manifest = Manifest(identity, _run_record(planned, started), result)
        for remark in commit(staging, out, manifest, overwrite, disk):
            observer.note(remark)
        seconds = replace(seconds, publish=perf_counter() - executed)
    return {**result, "seconds": asdict(seconds)}


NUMERICS: Mapping[str, str] = {
    "arithmetic": "float32 (float64 for float64 inputs), experts in recipe order, multiply and add apart",
    "rounding": "once, to nearest even",
    "randomness": "Philox 4x64 by element position, 16-bit lanes",
}


def _execute(planned: Planned, out: Path, staging: Staging, limits: Limits, observer: Observer) -> tuple[Receipt, ...]:
    total = output_bytes(planned.plan.logical)
    base = planned.checkpoints[0]
    store = open_store(base.url, Meter(), Purpose.SIDECAR, "base")
    extra = sum(file.size for file in sidecar_files(store, base)) + (4 << 20)
    store.close()
    staged = sum(receipt.file.size for receipt in staging.finished.values())
    require_space(out.parent, total + extra, staged)
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        observer.progress("merge", done, total)

    return run_locally(
        planned.plan,
        planned.operator,
        planned.schedule,
        planned.checkpoints,
        limits,
        staging.path,
        staging.finished,
        staging.record,
        progress,
    )


def _inputs_key(planned: Planned) -> str:
    """Changes when any input file may have changed: a killed run's shards are then not used."""
    return digest_of([[each.url, each.files] for each in planned.checkpoints])


def _input_records(planned: Planned, receipts: Sequence[Receipt]) -> tuple[InputRecord, ...]:
    contents = planned.contents or (None,) * len(planned.checkpoints)
    return tuple(
        InputRecord(
            ref=each.ref,
            position=each.position,
            header_digest=each.header_digest,
            read_digest=digest_of([receipt.read_digests[str(number)] for receipt in receipts]),
            content_digest=content,
        )
        for number, (each, content) in enumerate(zip(planned.plan.logical.inputs, contents, strict=True))
    )


def _require_same_inputs(recorded: Manifest, found: Sequence[InputRecord]) -> None:
    for before, now in zip(recorded.identity.inputs, found, strict=True):
        if before.read_digest != now.read_digest:
            raise ManifestMismatch(
                f"{now.ref}: its bytes changed since the merge: the plan's reads now digest to {now.read_digest}, "
                f"the manifest says {before.read_digest}; restore the model or merge anew"
            )


def _require_same_files(recorded: Manifest, found: Sequence[FileRecord]) -> None:
    before = {record.name: record for record in recorded.identity.files}
    now = {record.name: record for record in found}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            raise ManifestMismatch(
                f"{name}: the replayed file is {_described(now.get(name))}, the manifest says "
                f"{_described(before.get(name))}; the base's own {name} or the program changed since"
            )


def _described(record: FileRecord | None) -> str:
    return "absent" if record is None else f"{record.size:,} bytes {record.sha256}"


def _write_sidecars(planned: Planned, staging: Staging, receipts: Sequence[Receipt]) -> tuple[FileRecord, ...]:
    """Everything of the output that is not a tensor, from the base; returns what was written."""
    base = planned.checkpoints[0]
    logical = planned.plan.logical
    number = logical.tokenizer.input
    donor = logical.tokenizer.url if number is None else planned.checkpoints[number].url
    with (
        closing(open_store(base.url, Meter(), Purpose.SIDECAR, "base")) as store,
        closing(open_store(donor, Meter(), Purpose.SIDECAR, "tokenizer")) as tokenizer,
    ):
        own = {} if logical.tokenizer.plain else tokenizer_texts(logical.tokenizer, tokenizer, store)
        copied = copy_sidecars(store, base, staging.path, own.keys())
    written = dict.fromkeys(copied)
    floats = {t.out_dtype for t in logical.tensors if dtype(t.dtype).is_float and not t.copied}
    texts: dict[str, bytes] = {name: text for name, text in own.items() if text is not None}
    if base.config:
        config = output_config(base.config, floats.pop() if len(floats) == 1 else None, logical.config)
        texts["config.json"] = config_text(config).encode()
    if len(receipts) > 1:
        weight_map = {logical.tensors[n].name: file.name for file in logical.files for n in file.tensors}
        texts[WEIGHTS_INDEX] = weights_index(weight_map, output_bytes(logical))
    texts["README.md"] = model_card(_card(planned)).encode()
    with writing(staging.path, staging.advice):
        for name, data in texts.items():
            (staging.path / name).parent.mkdir(parents=True, exist_ok=True)
            (staging.path / name).write_bytes(data)
            written[name] = None
        return tuple(file_record(staging.path, name) for name in sorted(written))


def _card(planned: Planned) -> CardFields:
    logical, access = planned.plan.logical, planned.plan
    share = f"{100 * access.planned_bytes / access.full_bytes:.2f} %" if access.full_bytes else "nothing to read"
    return CardFields(
        title="Merged model",
        method=logical.method,
        base_ref=logical.inputs[0].ref,
        expert_refs=tuple(each.ref for each in logical.inputs[1:]),
        recipe=planned.recipe,
        read_lines=(
            f"budget: {access.budget.text} of the experts' {access.full_bytes:,} bytes, policy {access.policy}",
            f"planned: {access.planned_bytes:,} expert bytes ({share})",
        ),
        bound_line=bound_line(bound_object(access)),
        plan_digest=access.digest,
    )


def _run_record(planned: Planned, started: datetime) -> Run:
    return Run(
        started=started.isoformat(timespec="seconds"),
        host=socket.gethostname(),
        versions={
            "mergepipe": version("mergepipe"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        inputs=tuple(
            {"ref": each.ref, "url": each.url, "files": [asdict(file) for file in each.files]}
            for each in planned.checkpoints
        ),
        tokenizer=planned.plan.logical.tokenizer.url,
    )


def _peak_rss() -> int:
    """The most memory this process has held, in bytes.

    Not `ru_maxrss`, which a process inherits from the one that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
