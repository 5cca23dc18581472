"""A recipe with its models opened, aligned and composed: headers, configs and tokenizers are read, no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mergepipe.api.options import PlanOptions
from mergepipe.checkpoint.model import Checkpoint
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.checkpoint.quantised import refuse_quantised
from mergepipe.operators.contract import Operator
from mergepipe.operators.registry import operator as find_operator
from mergepipe.plan.bind import bind
from mergepipe.plan.compose import Composition, input_models
from mergepipe.plan.family import FamilyRules
from mergepipe.plan.logical import LogicalPlan
from mergepipe.plan.vocabulary import compose_by_token, settle_vocabulary, tokenizer_donor, vocabulary_findings
from mergepipe.recipe.model import ModelRef, Recipe
from mergepipe.recipe.parse import load_recipe, resolve_path
from mergepipe.sidecar.gather import chat_template, gather_tokenizers, require_loadable
from mergepipe.sidecar.tokens import Place
from mergepipe.store.meter import Meter


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


def bind_prepared(prepared: Prepared, options: PlanOptions) -> LogicalPlan:
    """What every output tensor is; pure. Its models must be aligned."""
    recipe = prepared.recipe
    seed = options.seed if options.seed is not None else (recipe.seed or 0)
    return bind(recipe, prepared.composition, prepared.operator, seed, options.shard_bytes)


def check(config: Path, rules: FamilyRules = FamilyRules()) -> Composition:
    """Open a recipe's models and align them. Reads headers and configs only; see `Composition.findings`."""
    return prepare(load_recipe(config), config.parent, rules).composition


def prepare(recipe: Recipe, folder: Path, rules: FamilyRules) -> Prepared:
    """Open and compose a recipe's models; relative paths in it are from `folder`. Refuses quantised ones."""
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
