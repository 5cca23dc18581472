"""mergekit's dialect (that of 0.1.5), with our `variant` and `seed`, to a `Recipe`.

Stricter than mergekit in one way: what nothing would read is an error, not silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mergepipe.core.dtypes import TORCH_NAMES
from mergepipe.core.suggest import did_you_mean
from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Operator, Parameter, takes_base_as_input
from mergepipe.operators.registry import names, operator
from mergepipe.recipe.model import (
    Filtered,
    FilteredValue,
    Gradient,
    InputModel,
    ModelRef,
    OutputSlice,
    Recipe,
    Scalar,
    Setting,
    Settings,
    SliceSource,
    TokenizerSpec,
    TokenSource,
)
from mergepipe.recipe.reader import Place, unknown_key

_TOP: Final = (
    "merge_method", "base_model", "models", "slices", "parameters", "dtype", "out_dtype", "tokenizer_source",
    "tokenizer", "chat_template", "name", "variant", "seed",
)  # fmt: skip
_MODEL: Final = ("model", "parameters")
_SLICE: Final = ("sources", "base_model", "parameters")
_SOURCE: Final = ("model", "layer_range", "parameters")
_FILTER: Final = ("filter", "value")
_TOKENIZER: Final = ("source", "tokens", "pad_to_multiple_of")
_TOKEN: Final = ("source", "force")
_TOKEN_KINDS: Final = ("model_token", "zero")

# The task-vector family's common vocabulary: recipes carry these from one method to another, so a method
# that has no use for one accepts it (and a note says so) instead of refusing.
_FAMILY: Final = (
    Parameter("weight", float, 1.0, per_model=True),
    Parameter("density", float, 1.0, per_model=True),
    Parameter("gamma", float, 0.01, per_model=True),
    Parameter("epsilon", float, 0.15, per_model=True),
    Parameter("lambda", float, 1.0),
    Parameter("normalize", bool, False),
    Parameter("rescale", bool, False),
    Parameter("int8_mask", bool, False),
)
# Changes no result even where a method knows it, so it may stand anywhere.
_WITHOUT_EFFECT: Final = frozenset({"int8_mask"})

_UNSUPPORTED: Final = {
    "modules": "merging by module (text, vision, ...) is not supported yet: give whole models under `models`",
    "residual_weight": "has no effect in mergekit and is not supported: remove it",
    "override_architecture": "is not supported: the architecture is that of the model's config.json",
}
_WHOLE_NUMBER: Final = Parameter("", int, low=0, high=2**63 - 1)
_POSITIVE: Final = Parameter("", int, low=1, high=2**31)
_SWITCH: Final = Parameter("", bool)


@dataclass(frozen=True, slots=True)
class _Method:
    """The operator a recipe names, and every parameter that may be written for it."""

    operator: Operator
    accepted: Mapping[str, Parameter]
    used: frozenset[str]

    @property
    def name(self) -> str:
        return self.operator.name


def translate(document: Place, text: str) -> Recipe:
    """The recipe that `document` states. Raises `RecipeError` with file, line and key.

    No model is opened. `text` is kept in the recipe as the user's source.
    """
    top = document.mapping()
    method = _method(document, top)
    _check_keys(top, _TOP, method.accepted)
    given = {key: place for key, place in top.items() if not place.is_null}
    if "tokenizer" in given and "tokenizer_source" in given:
        raise given["tokenizer_source"].error("tokenizer and tokenizer_source cannot both be given: keep one")

    shared = _settings(given.get("parameters"), method, per_model=False)
    base = _model(given["base_model"]) if "base_model" in given else None
    models: tuple[InputModel, ...] = ()
    slices: tuple[OutputSlice, ...] = ()
    notes: tuple[str, ...] = ()
    if "models" in given and "slices" in given:
        raise given["slices"].error("models and slices cannot both be given: whole models, or slices of layers")
    if "models" in given:
        models = _models(given["models"], method, base, shared)
        models, notes = _with_base(models, method, base, shared)
    elif "slices" in given:
        slices = _slices(given["slices"], method, base, shared)
    else:
        raise document.error("names no inputs: give `models:` (whole models) or `slices:` (runs of layers)")
    if method.operator.needs_base and base is None and not (slices and all(each.base_model for each in slices)):
        raise top["merge_method"].error(
            f"{method.name} needs base_model, the common ancestor of the models: add `base_model: PATH`"
        )

    levels = [shared, *(each.parameters for each in models), *(each.parameters for each in slices)]
    levels += [source.parameters for each in slices for source in each.sources]
    return Recipe(
        method=method.name,
        models=models,
        slices=slices,
        base=base,
        variant=_variant(given, method),
        parameters=shared,
        dtype=_dtype(given.get("dtype")),
        out_dtype=_dtype(given.get("out_dtype")),
        tokenizer=_tokenizer(given),
        chat_template=given["chat_template"].text() if "chat_template" in given else None,
        name=given["name"].text() if "name" in given else None,
        seed=int(given["seed"].scalar(_WHOLE_NUMBER)) if "seed" in given else None,
        text=text,
        notes=notes + _unused_notes(levels, method),
    )


# ---------------------------------------------------------------- method and keys


def _method(document: Place, top: Mapping[str, Place]) -> _Method:
    place = top.get("merge_method")
    if place is None:
        _check_keys(top, _TOP, {})  # a misspelt merge_method is the likelier fault
        raise document.error(f"names no method: add `merge_method:` with one of {', '.join(names())}")
    name = place.text("the name of a method")
    chosen = _located(place, name, None)
    variant = top.get("variant")
    if variant is not None and not variant.is_null:
        chosen = _located(variant, name, variant.text("the name of a variant"))
    own = {each.name: each for each in chosen.parameters}
    return _Method(chosen, {each.name: each for each in _FAMILY} | own, frozenset(own))


def _located(place: Place, name: str, variant: str | None) -> Operator:
    try:
        return operator(name, variant)
    except RecipeError as error:
        raise place.error(str(error)) from None


def _variant(given: Mapping[str, Place], method: _Method) -> str | None:
    """The variant, if the recipe chose one by `variant:` or in the method's full name."""
    chosen = "variant" in given or "@" in given["merge_method"].text()
    return method.operator.version.partition("@")[2] if chosen else None


def _check_keys(found: Mapping[str, Place], known: Iterable[str], parameters: Mapping[str, Parameter]) -> None:
    """Refuse what is not in `known`; a parameter's name there is the classic slip of indentation."""
    known = tuple(known)
    for name, place in found.items():
        if name in known:
            continue
        if name in _UNSUPPORTED:
            if place.is_null:
                continue
            raise place.error(_UNSUPPORTED[name])
        if name in parameters and "parameters" in known:
            raise place.error("is a parameter: move it under `parameters:` (indent it below that line)")
        raise unknown_key(place, name, known)


# ---------------------------------------------------------------- parameters


def _settings(place: Place | None, method: _Method, per_model: bool) -> Settings:
    """One `parameters:` mapping, its values checked against the method, not yet resolved."""
    if place is None or place.is_null:
        return {}
    found: dict[str, Setting] = {}
    for name, value in place.mapping().items():
        parameter = method.accepted.get(name)
        if parameter is None:
            raise _unknown_parameter(name, value, method)
        if per_model and not parameter.per_model and name in method.used and name not in _WITHOUT_EFFECT:
            raise value.error(
                "belongs to the whole merge, not to one model: move it to the `parameters:` at the top level"
            )
        found[name] = _setting(value, parameter)
    return found


def _unknown_parameter(name: str, value: Place, method: _Method) -> RecipeError:
    if name in _TOP:
        return value.error("is a key of its own, not a parameter: move it out of `parameters:`, to the top level")
    hint = did_you_mean(name, method.accepted)
    takes = ", ".join(each.name for each in method.operator.parameters) or "none"
    return value.error(f"unknown parameter of {method.name}{hint} ({method.name} takes: {takes})")


def _setting(place: Place, parameter: Parameter) -> Setting:
    if place.is_mapping:
        return Filtered((_filtered(place, parameter),))
    if not place.is_list:
        return place.scalar(parameter)
    items = place.items("a value or a list of values")
    if any(item.is_mapping for item in items):
        return Filtered(tuple(_filtered(item, parameter) for item in items))
    return Gradient(tuple(item.scalar(parameter) for item in items))


def _filtered(place: Place, parameter: Parameter) -> FilteredValue:
    if not place.is_mapping:
        raise place.error("a list holds either plain values (a gradient) or {filter, value} entries, not both")
    entry = place.mapping()
    _check_keys(entry, _FILTER, {})
    if "value" not in entry:
        raise place.error("needs a `value:`")
    value = entry["value"]
    setting: Scalar | Gradient
    if value.is_list:
        setting = Gradient(tuple(item.scalar(parameter) for item in value.items()))
    else:
        setting = value.scalar(parameter)
    pattern = entry.get("filter")
    name = None if pattern is None or pattern.is_null else pattern.text("part of a tensor's name")
    return FilteredValue(None if name == "*" else name, setting)


def _unused_notes(levels: Iterable[Settings], method: _Method) -> tuple[str, ...]:
    unused = sorted({name for level in levels for name in level} - method.used)
    return tuple(f'parameter "{name}" has no effect on {method.name}' for name in unused)


def _check_required(place: Place, what: ModelRef, levels: Iterable[Settings], method: _Method) -> None:
    given = {name for level in levels for name in level}
    for parameter in method.operator.parameters:
        if parameter.default is None and parameter.per_model and parameter.name not in given:
            raise place.error(
                f'{method.name} needs "{parameter.name}" for model {what}: '
                f"give it in the model's `parameters:`, or for all models in those at the top level"
            )


def _check_required_of_merge(place: Place, levels: Iterable[Settings], method: _Method) -> None:
    given = {name for level in levels for name in level}
    for parameter in method.operator.parameters:
        if parameter.default is None and not parameter.per_model and parameter.name not in given:
            raise place.error(f'{method.name} needs "{parameter.name}": give it in the `parameters:` at the top level')


# ---------------------------------------------------------------- models and slices


def _models(place: Place, method: _Method, base: ModelRef | None, shared: Settings) -> tuple[InputModel, ...]:
    found = []
    _check_required_of_merge(place, [shared], method)
    for item in place.items("a list of `- model: PATH` entries"):
        if item.is_scalar:
            raise item.error(f"must be an entry `- model: {item.text()}`")
        entry = item.mapping()
        _check_keys(entry, _MODEL, method.accepted)
        if "model" not in entry:
            raise item.error("needs a `model:`")
        model = _model(entry["model"])
        own = _settings(entry.get("parameters"), method, per_model=True)
        if takes_base_as_input(method.operator) or model != base:
            _check_required(entry["model"], model, [own, shared], method)
        found.append(InputModel(model, own))
    return tuple(found)


def _with_base(
    models: tuple[InputModel, ...], method: _Method, base: ModelRef | None, shared: Settings
) -> tuple[tuple[InputModel, ...], tuple[str, ...]]:
    """`models`, and where a method averages models as they are (linear), mergekit's rule for an unlisted base.

    Such a base counts as one more input if the settings of the whole merge give it all it must have. Where
    mergekit stops because they do not, the base here only lends its config and its coordinates.
    """
    if base is None or not takes_base_as_input(method.operator) or any(each.model == base for each in models):
        return models, ()
    required = {each.name for each in method.operator.parameters if each.per_model and each.default is None}
    if required and required <= set(shared):
        return (*models, InputModel(base)), (f"base_model {base} is not in models; it is merged as one more input",)
    return models, (f"base_model {base} is not in models; it gives config and tokenizer, its weights do not count",)


def _slices(place: Place, method: _Method, base: ModelRef | None, shared: Settings) -> tuple[OutputSlice, ...]:
    found = []
    for item in place.items("a list of `- sources:` entries"):
        entry = item.mapping()
        _check_keys(entry, _SLICE, method.accepted)
        if "sources" not in entry:
            raise item.error("needs `sources:`")
        own_base = entry.get("base_model")
        slice_base = _model(own_base) if own_base is not None and not own_base.is_null else None
        own = _settings(entry.get("parameters"), method, per_model=False)
        _check_required_of_merge(item, [own, shared], method)
        sources = _sources(entry["sources"], method, slice_base or base, [own, shared])
        found.append(OutputSlice(sources, slice_base, own))
    return tuple(found)


def _sources(place: Place, method: _Method, base: ModelRef | None, levels: list[Settings]) -> tuple[SliceSource, ...]:
    found: list[SliceSource] = []
    for item in place.items("a list of `- model:` entries with a layer_range"):
        entry = item.mapping()
        _check_keys(entry, _SOURCE, method.accepted)
        for key in ("model", "layer_range"):
            if key not in entry:
                raise item.error(f"needs a `{key}:`")
        model = _model(entry["model"])
        layers = _layer_range(entry["layer_range"])
        own = _settings(entry.get("parameters"), method, per_model=True)
        if takes_base_as_input(method.operator) or model != base:
            _check_required(entry["model"], model, [own, *levels], method)
        if found and found[0].layer_range is not None:
            first, count = found[0], found[0].layer_range[1] - found[0].layer_range[0]
            if layers[1] - layers[0] != count:
                raise entry["layer_range"].error(
                    f"takes {layers[1] - layers[0]} layers of {model}, but {count} of {first.model}: "
                    "all sources of a slice need equally many"
                )
        found.append(SliceSource(model, layers, own))
    return tuple(found)


def _layer_range(place: Place) -> tuple[int, int]:
    items = place.items("[first, end]")
    if len(items) != 2:
        raise place.error(f"must be [first, end], found {len(items)} values")
    first, end = (int(item.scalar(_WHOLE_NUMBER)) for item in items)
    if first >= end:
        raise place.error(f"[{first}, {end}] holds no layer: layers count from 0 and the end is exclusive")
    return first, end


def _model(place: Place) -> ModelRef:
    """`path[@revision][+lora[@revision]]`, or `{model: {path, revision}, lora: ...}`, where `+` is no separator."""
    if not place.is_mapping:
        parts = place.text("a model: PATH, PATH@REVISION or PATH+ADAPTER").split("+")
        if len(parts) > 2:
            raise place.error(
                f"{place.text()!r} has more than one `+`; write a path that contains one as `{{model: {{path: ...}}}}`"
            )
        lora = _path(place, parts[1]) if len(parts) == 2 else None
        head = _path(place, parts[0])
        return ModelRef(head.path, head.revision, lora)
    entry = place.mapping()
    _check_keys(entry, ("model", "lora"), {})
    if "model" not in entry:
        raise place.error("needs a `model:`")
    head = _path_entry(entry["model"])
    adapter = entry.get("lora")
    return ModelRef(head.path, head.revision, None if adapter is None or adapter.is_null else _path_entry(adapter))


def _path_entry(place: Place) -> ModelRef:
    if not place.is_mapping:
        return _path(place, place.text("PATH or PATH@REVISION"))
    entry = place.mapping()
    _check_keys(entry, ("path", "revision"), {})
    if "path" not in entry:
        raise place.error("needs a `path:`")
    revision = entry.get("revision")
    return ModelRef(entry["path"].text(), None if revision is None or revision.is_null else revision.text())


def _path(place: Place, text: str) -> ModelRef:
    path, at, revision = text.partition("@")
    if not path or (at and not revision) or "@" in revision:
        raise place.error(
            f"{place.text()!r} is not PATH[@REVISION][+ADAPTER[@REVISION]]; "
            "a path that contains `@` or `+` is written `{model: {path: ...}}`"
        )
    return ModelRef(path, revision or None)


# ---------------------------------------------------------------- output


def _dtype(place: Place | None) -> str | None:
    """`bfloat16`, `torch.bfloat16` → `"BF16"`."""
    if place is None:
        return None
    name = place.text("the name of a dtype").removeprefix("torch.")
    if name not in TORCH_NAMES:
        known = ", ".join(TORCH_NAMES)
        raise place.error(f'unknown dtype "{name}"{did_you_mean(name, TORCH_NAMES)} (known: {known})')
    return TORCH_NAMES[name]


def _tokenizer(given: Mapping[str, Place]) -> TokenizerSpec | None:
    if "tokenizer_source" in given:
        return TokenizerSpec(_tokenizer_source(given["tokenizer_source"]))
    if "tokenizer" not in given:
        return None
    place = given["tokenizer"]
    if place.is_scalar:
        raise place.error(f"must be a mapping: write `tokenizer_source: {place.text()}`, or `source:` below tokenizer")
    entry = place.mapping()
    _check_keys(entry, _TOKENIZER, {})
    present = {key: value for key, value in entry.items() if not value.is_null}
    tokens = present["tokens"].mapping() if "tokens" in present else {}
    multiple = present.get("pad_to_multiple_of")
    return TokenizerSpec(
        source=_tokenizer_source(present["source"]) if "source" in present else "union",
        tokens={token: _token(value) for token, value in tokens.items()},
        pad_to_multiple_of=None if multiple is None else int(multiple.scalar(_POSITIVE)),
    )


def _tokenizer_source(place: Place) -> str | ModelRef:
    if place.is_scalar and place.text() in ("union", "base"):
        return place.text()
    return _model(place)


def _token(place: Place) -> TokenSource:
    entry = place.mapping()
    _check_keys(entry, _TOKEN, {})
    force = bool(entry["force"].scalar(_SWITCH)) if "force" in entry else False
    source = entry.get("source")
    if source is None or source.is_null:
        if force:
            raise entry["force"].error(
                "has nothing to force without a source: add `source:` (a model, or kind zero or model_token), or leave "
                "force out"
            )
        return TokenSource("default")
    keys = source.mapping() if source.is_mapping else {}
    if "kind" not in keys:
        return TokenSource("model", _model(source), force=force)
    kind = keys["kind"].text()
    if kind not in _TOKEN_KINDS:
        raise keys["kind"].error(
            f'unknown kind "{kind}"{did_you_mean(kind, _TOKEN_KINDS)} (known: {", ".join(_TOKEN_KINDS)})'
        )
    if kind == "zero":
        _check_keys(keys, ("kind",), {})
        return TokenSource("zero", force=force)
    _check_keys(keys, ("kind", "model", "token", "token_id"), {})
    present = {key: value for key, value in keys.items() if not value.is_null}
    if "model" not in present or ("token" in present) == ("token_id" in present):
        raise source.error("kind model_token needs `model:` and one of `token:` and `token_id:`")
    return TokenSource(
        kind,
        _model(present["model"]),
        token=present["token"].text("a token") if "token" in present else None,
        token_id=int(present["token_id"].scalar(_WHOLE_NUMBER)) if "token_id" in present else None,
        force=force,
    )
