"""The recipe's tokenizer over opened models: the output's rows, and embeddings and heads made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mergepipe.checkpoint.assembled import presented
from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.names import parse_role
from mergepipe.checkpoint.rows import NONE, RowMap, Rows, RowTable, is_identity, row_map
from mergepipe.core.dtypes import dtype
from mergepipe.core.extents import Extent
from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator
from mergepipe.plan.compose import Composition, OutputTensor, compose, same_model
from mergepipe.plan.family import FamilyRules, Finding, Severity
from mergepipe.recipe.model import ModelRef, Recipe, TokenSource
from mergepipe.sidecar.token_ids import renumbered
from mergepipe.sidecar.tokens import ModelTokenizer, NewToken, TokenizerFiles, Tokenizers
from mergepipe.sidecar.vocabulary import (
    OutputVocabulary,
    TokenChoice,
    additions,
    compare,
    output_vocabulary,
    with_ids,
)

_VOCABULARY_ROLES = ("embed", "lm_head")
_SIZE = "vocab_size"
_LISTED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The output's vocabulary, settled.

    `rows` is the number of rows of embedding and head, padding included. `based` says whether input 0 is a base
    whose rows stand in for what others lack. `config` is what config.json must say otherwise.
    """

    output: OutputVocabulary
    rows: int
    based: bool
    files: TokenizerFiles
    config: Mapping[str, Any] = field(hash=False)
    findings: tuple[Finding, ...]


def vocabulary_findings(recipe: Recipe, models: Sequence[Checkpoint], tokenizers: Tokenizers) -> tuple[Finding, ...]:
    """Every model's vocabulary against the first's. Unlike ones are a warning unless the recipe has a tokenizer."""
    base = tokenizers.models[0]
    findings = []
    for model, tokenizer in zip(models[1:], tokenizers.models[1:], strict=True):
        if base is None or tokenizer is None:
            if base is not tokenizer:
                which = models[0].ref if base is None else model.ref
                message = f"vocabulary not compared: {which} has no tokenizer.json"
                findings.append(Finding(Severity.NOTE, model.ref, message))
            continue
        found = compare(base, tokenizer)
        if found.same:
            continue
        message = f"vocabulary: {found}"
        if tokenizer.kind != base.kind:
            message += f"; text becomes tokens otherwise ({tokenizer.kind}, the base {base.kind})"
        if recipe.tokenizer is not None:
            findings.append(Finding(Severity.NOTE, model.ref, message))
            continue
        risk = "rows of different tokens are merged" if found.moved else "rows go by number"
        message += f"; {risk}, since the recipe has no `tokenizer_source:` (union, base or a model)"
        findings.append(Finding(Severity.WARNING, model.ref, message))
    return tuple(findings)


def settle_vocabulary(
    recipe: Recipe, refs: Sequence[ModelRef], models: Sequence[Checkpoint], tokenizers: Tokenizers
) -> Vocabulary | None:
    """The output's vocabulary by the recipe's tokenizer section; None where it has none.

    `refs` are the inputs as the recipe names them. Raises `RecipeError` for tokens and models that do not exist.
    """
    spec = recipe.tokenizer
    if spec is None:
        return None
    known, findings = _assumed(models, tokenizers)
    layout: int | None = 0
    source = known[0]
    if isinstance(spec.source, ModelRef):
        layout = next((n for n, ref in enumerate(refs) if same_model(ref, spec.source)), None)
        source = known[layout] if layout is not None else _required(tokenizers.donor, str(spec.source))
    choices = {token: _choice(token, each, refs, known) for token, each in spec.tokens.items()}
    united = spec.source == "union"
    new = additions(source, known[1:], tuple(choices), united)
    ids = with_ids(source, new)
    stored = [_embedding_rows(model) for model in models]
    least = stored[layout] if layout is not None and spec.pad_to_multiple_of is None else 0
    _require_dense(ids, max(stored), models[layout].ref if layout is not None else tokenizers.donor_place.ref)
    output = output_vocabulary(ids, new, known, choices, least)
    multiple = spec.pad_to_multiple_of or 1
    rows = -(-output.named.size // multiple) * multiple
    config, generation = _token_ids(models, tokenizers, layout, known, ids, findings)
    files = TokenizerFiles(
        input=layout,
        ref="" if layout == 0 else tokenizers.donor_place.ref if layout is None else models[layout].ref,
        url=tokenizers.donor_place.url if layout is None else "",
        added=tuple(NewToken(id_, token) for id_, token in output.added.values()),
        generation=generation,
    )
    if files.added and united:
        message = f"tokenizer: union: {len(files.added):,} tokens of the others are added to the base's"
        findings.append(Finding(Severity.NOTE, models[0].ref, message))
        ordinary = [each.content for each in new if not any(each.content in other.added for other in known)]
        if ordinary:
            message = (
                f"tokenizer: union: {len(ordinary):,} of the new tokens are ordinary ones in their model "
                f"({_listed(ordinary)}); as added tokens they are matched before all others, so that text may become "
                "other tokens than by the base's tokenizer alone"
            )
            findings.append(Finding(Severity.WARNING, models[0].ref, message))
    return Vocabulary(output, rows, recipe.base is not None, files, config, tuple(findings))


def tokenizer_donor(recipe: Recipe, refs: Sequence[ModelRef]) -> ModelRef | None:
    """The model whose tokenizer the recipe takes where it is none of the inputs."""
    source = None if recipe.tokenizer is None else recipe.tokenizer.source
    if not isinstance(source, ModelRef) or any(same_model(ref, source) for ref in refs):
        return None
    return source


def compose_by_token(
    recipe: Recipe,
    operator: Operator,
    models: Sequence[Checkpoint],
    rules: FamilyRules,
    vocabulary: Vocabulary | None,
    findings: Sequence[Finding],
) -> Composition:
    """Compose a recipe whose vocabulary is settled; None: rows go by number. `findings` are added to those made."""
    if vocabulary is None:
        composition = compose(recipe, operator, models, rules)
    else:
        composition = assemble(compose(recipe, operator, with_rows(models, vocabulary.rows), rules), models, vocabulary)
    return replace(composition, findings=(*composition.findings, *findings))


def with_rows(models: Sequence[Checkpoint], rows: int) -> tuple[Checkpoint, ...]:
    """The models as they are to be aligned: embeddings and heads of `rows` rows each, as assembled ones will have."""
    return tuple(
        replace(
            model,
            tensors={
                name: replace(tensor, shape=(rows, *tensor.shape[1:])) if _by_token(model, tensor) else tensor
                for name, tensor in model.tensors.items()
            },
            config=_with_size(model.config, rows),
        )
        for model in models
    )


def assemble(composition: Composition, models: Sequence[Checkpoint], vocabulary: Vocabulary) -> Composition:
    """A composition of `with_rows` models over the `models` themselves, rows by token.

    A tensor whose inputs all have the output's rows in the output's order stays as it is.
    """
    tensors = []
    findings = list(composition.findings)
    zeros: dict[str, None] = {}
    lacking: list[str] = []
    assembled: list[OutputTensor] = []
    for tensor in composition.tensors:
        if not _by_token(composition.models[tensor.base_input], tensor.base):
            tensors.append(tensor)
            continue
        settled, missing = _assembled(tensor, models, vocabulary)
        if missing:
            zeros |= dict.fromkeys(missing)
            lacking.append(tensor.name)
        tensors.append(settled)
        if settled.rows is not None:
            assembled.append(settled)
    base = models[0].ref
    if assembled:
        message = (
            f"{', '.join(tensor.name for tensor in assembled)}: rows are put in the output's order by token, and are "
            "read whole under every budget"
        )
        findings.append(Finding(Severity.NOTE, base, message))
    if zeros:
        message = (
            f"{', '.join(lacking)}: {len(zeros):,} tokens have a row in none of the models that these are made from, "
            f"and get zeros: {_listed(tuple(zeros))}"
        )
        findings.append(Finding(Severity.WARNING, base, message))
    config = {**composition.config, **vocabulary.config}
    if assembled:
        config[_SIZE] = vocabulary.rows
    return replace(
        composition,
        models=tuple(models),
        tensors=tuple(tensors),
        findings=(*findings, *vocabulary.findings),
        config=config,
        tokenizer=vocabulary.files,
    )


def tensor_rows(
    vocabulary: Vocabulary, inputs: Sequence[int], stored: Sequence[int], name: str
) -> tuple[RowMap, tuple[str, ...]]:
    """The rows of one output tensor made from `inputs` (place by place), whose tensors have `stored` rows each.

    A place that lacks a token takes the base's row if the base has one, the only row if one model has the token,
    else the mean of all that have it; the recipe's choices go before. Also returns the tokens with no row anywhere.
    """
    output = vocabulary.output
    own = [np.where(output.own[n] < rows, output.own[n], NONE) for n, rows in zip(inputs, stored, strict=True)]
    present = np.stack([mine >= 0 for mine in own])
    several = present.sum(axis=0) > 1
    of_base = several & present[0] & vocabulary.based
    given = [mine.copy() if place == 0 else np.where(of_base, NONE, mine) for place, mine in enumerate(own)]
    missing = ~present.any(axis=0) & output.named
    for token, choice in output.choices.items():
        row = output.ids[token]
        _choose(own, given, row, token, choice, inputs, stored, name)
        missing[row] &= choice.kind == "default"
    tokens = {id_: token for token, id_ in output.ids.items()} if missing.any() else {}
    return row_map(own, given, vocabulary.rows), tuple(tokens[int(row)] for row in np.flatnonzero(missing))


def _choose(
    own: Sequence[Rows], given: Sequence[Rows], row: int, token: str, choice: TokenChoice, inputs: Sequence[int],
    stored: Sequence[int], name: str,
) -> None:  # fmt: skip
    """Put one token's choice into the arrays."""
    what = f"tokenizer: tokens: {token!r}"
    if choice.kind != "default":
        chosen = NONE
        place = NONE
        if choice.model is not None:
            if choice.model not in inputs:
                raise RecipeError(f"{what}: {name} is not made from the model its embedding is to come from")
            place = inputs.index(choice.model)
            chosen = int(own[place][row]) if choice.token_id is None else choice.token_id
            if not 0 <= chosen < stored[place]:
                raise RecipeError(
                    f"{what}: {name} of the model its embedding is to come from has {stored[place]:,} rows, "
                    f"{'none of which is this token' if chosen < 0 else f'not one of number {chosen:,}'}"
                )
        for number, each in enumerate(given):
            each[row] = chosen if number == place else NONE
    if choice.force:
        for mine in own:
            mine[row] = NONE


def _assembled(
    tensor: OutputTensor, models: Sequence[Checkpoint], vocabulary: Vocabulary
) -> tuple[OutputTensor, tuple[str, ...]]:
    infos = [models[tensor.base_input].tensors[tensor.base.name]]
    infos += [models[term.input].tensors[term.tensor.name] for term in tensor.terms]
    inputs = [tensor.base_input, *(term.input for term in tensor.terms)]
    stored = [info.shape[0] for info in infos]
    rows, missing = tensor_rows(vocabulary, inputs, stored, tensor.name)
    if is_identity(rows, stored):
        base, *others = infos
        terms = tuple(
            replace(term, tensor=info, elements=info.elements) for term, info in zip(tensor.terms, others, strict=True)
        )
        return replace(tensor, base=base, terms=terms), missing
    codes = presented(RowTable(rows), [info.dtype for info in infos])
    base, *others = (_presented(info, code, rows.rows) for info, code in zip(infos, codes, strict=True))
    terms = tuple(
        replace(term, tensor=info, elements=info.elements) for term, info in zip(tensor.terms, others, strict=True)
    )
    return replace(tensor, base=base, terms=terms, rows=rows, stored=tuple(info.dtype for info in infos)), missing


def _presented(info: TensorInfo, code: str, rows: int) -> TensorInfo:
    """A tensor as it is presented, assembled; its bytes are at no one place."""
    shape = (rows, *info.shape[1:])
    size = int(np.prod(shape, dtype=np.int64)) * dtype(code).itemsize
    return TensorInfo(info.name, code, shape, Extent("", 0, size))


def _by_token(model: Checkpoint, tensor: TensorInfo) -> bool:
    """Whether a tensor has a row for each token."""
    role = parse_role(tensor.name, tensor.shape, model.config)
    in_vocabulary = role.component in _VOCABULARY_ROLES and role.layer is None
    return in_vocabulary and tensor.storage.is_float and len(tensor.shape) >= 1


def _embedding_rows(model: Checkpoint) -> int:
    """Rows of the embedding (of the head, where there is no embedding)."""
    found: dict[str, int] = {}
    for tensor in model.tensors.values():
        if _by_token(model, tensor):
            found.setdefault(parse_role(tensor.name, tensor.shape, model.config).component, tensor.shape[0])
    return found.get("embed", found.get("lm_head", 0))


def _with_size(config: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
    sized = {**config, _SIZE: rows} if _SIZE in config else dict(config)
    nested = config.get("text_config")
    if isinstance(nested, Mapping) and _SIZE in nested:
        sized["text_config"] = {**nested, _SIZE: rows}
    return sized


def _assumed(models: Sequence[Checkpoint], tokenizers: Tokenizers) -> tuple[list[ModelTokenizer], list[Finding]]:
    """Every model's tokenizer; one without any files of one is taken to have the base's.

    Raises `RecipeError` for a model whose tokenizer is there in another form: its tokens may be others.
    """
    base = _required(tokenizers.models[0], models[0].ref, tokenizers.other_forms[0])
    known, findings = [], []
    for model, tokenizer, form in zip(models, tokenizers.models, tokenizers.other_forms, strict=True):
        if tokenizer is None:
            if form is not None:
                _required(None, model.ref, form)
            message = f"has no tokenizer: its tokens are taken to be those of {models[0].ref}"
            findings.append(Finding(Severity.WARNING, model.ref, message))
        known.append(tokenizer or base)
    return known, findings


def _require_dense(ids: Mapping[str, int], rows: int, ref: str) -> None:
    """Every token gets a row, so an id far beyond both tokens and embeddings would make a model of zeros."""
    token, last = max(ids.items(), key=lambda item: item[1], default=("", -1))
    if last >= rows + len(ids):
        raise RecipeError(
            f"tokenizer: {ref}: token {token!r} has the id {last:,}, beyond {rows:,} rows and {len(ids):,} tokens: "
            "a tokenizer whose ids have such gaps cannot number an embedding's rows"
        )


def _required(tokenizer: ModelTokenizer | None, ref: str, form: str | None = None) -> ModelTokenizer:
    if tokenizer is None:
        instead = "" if form is None else f", only {form}"
        raise RecipeError(
            f"tokenizer: {ref} has no tokenizer.json{instead}; only that file tells its tokens' ids here: load it with "
            "transformers' AutoTokenizer and save it, or leave the tokenizer out of the recipe"
        )
    return tokenizer


def _choice(
    token: str, source: TokenSource, refs: Sequence[ModelRef], tokenizers: Sequence[ModelTokenizer]
) -> TokenChoice:
    """A token's source with its model as an input's number, and its model's token as an id."""
    what = f"tokenizer: tokens: {token!r}"
    if source.model is None:
        return TokenChoice(source.kind, force=source.force)
    number = next((n for n, ref in enumerate(refs) if same_model(ref, source.model)), None)
    if number is None:
        raise RecipeError(f"{what}: {source.model} is not among the models that are merged")
    wanted = token if source.kind == "model" else source.token
    if wanted is not None and wanted not in tokenizers[number].ids:
        raise RecipeError(f"{what}: {source.model} has no token {wanted!r}")
    id_ = source.token_id
    if source.kind == "model_token" and wanted is not None:
        id_ = tokenizers[number].ids[wanted]
    return TokenChoice(source.kind, number, wanted, id_, source.force)


def _token_ids(
    models: Sequence[Checkpoint], tokenizers: Tokenizers, layout: int | None, known: Sequence[ModelTokenizer],
    ids: Mapping[str, int], findings: list[Finding],
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """What config.json and generation_config.json must say of token ids where the numbering is not the base's.

    An id goes with its token; where nothing of a value is left, the tokenizer's own model is asked.
    """
    if layout == 0:
        return {}, {}
    before = {id_: token for token, id_ in known[0].ids.items()}
    theirs = models[layout].config if layout is not None else tokenizers.donor_config
    nested = models[0].config.get("text_config")
    top = {**(nested if isinstance(nested, Mapping) else {}), **models[0].config}
    moved: list[dict[str, Any]] = []
    said: dict[str, None] = {}
    for values in (top, tokenizers.generation):
        changed: dict[str, Any] = {}
        for key, value in values.items():
            found = None if value is None else renumbered(key, value, before, ids)
            if found is None:
                continue
            settled = theirs.get(key) if found.lost and found.value is None else found.value
            if found.lost:
                lost = ", ".join(f"{each} ({before[each]!r})" if each in before else str(each) for each in found.lost)
                message = f"{key} {value}: the output's vocabulary lacks {lost}; it becomes {json.dumps(settled)}"
                said[message] = None
            if settled != value:
                changed[key] = settled
        moved.append(changed)
    findings += [Finding(Severity.WARNING, models[0].ref, message) for message in said]
    return moved[0], moved[1]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED:,} more"
