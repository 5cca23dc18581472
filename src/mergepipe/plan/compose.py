"""Which input tensors each output tensor is made from, for recipes of whole models and of slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.names import is_derived_buffer, parse_role, prefix_between, with_layer
from mergepipe.checkpoint.rows import RowMap
from mergepipe.errors import IncompatibleModels, RecipeError
from mergepipe.operators.contract import Grain, Operator, takes_base_as_input
from mergepipe.plan.family import Family, FamilyRules, Finding, Severity, align, expert_part
from mergepipe.recipe.model import InputModel, ModelRef, OutputSlice, Recipe, Settings, SliceSource
from mergepipe.sidecar.tokens import BASE_FILES, TokenizerFiles

# How configs of different architectures call the number of layers.
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
# Towers beside the language model keep their own layers: slices do not cut them.
_TOWERS = ("vision", "visual", "audio", "image", "speech")


@dataclass(frozen=True, slots=True)
class Roles:
    """Which model of a recipe of whole models is what: the base, its own entry as an input, the experts' entries."""

    base: ModelRef
    reference: InputModel | None
    experts: tuple[InputModel, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """An expert's tensor in an output tensor: see `ExpertTensor`. `levels` are its settings, nearest first."""

    input: int
    tensor: TensorInfo
    elements: int
    levels: tuple[Settings, ...] = field(hash=False)
    position: int


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output tensor and what it is made from.

    `place` is where its layer lies in its slice, from 0 (first, or in no layer) to 1: gradients are
    read there. `reference` holds the base's own settings where the base is an input; `shared` those
    of the merge. `row_multiple` is how many rows a block keeps together: a head's, or all of a vector
    where the method looks at whole rows. `rows` says how a tensor with a row for each token is put together,
    where its inputs' rows are not the output's as they are; base and terms are then as they are presented, and
    `stored` are the dtypes they are stored in.
    """

    name: str
    base: TensorInfo
    base_input: int
    terms: tuple[Term, ...]
    copied: bool
    place: float
    reference: tuple[Settings, ...] | None = field(hash=False)
    shared: tuple[Settings, ...] = field(hash=False)
    row_multiple: int = 1
    rows: RowMap | None = None
    stored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Composition:
    """A whole recipe over opened models; `models[0]` gives config and tokenizer. `config` overrides the config.

    `tokenizer` says what the output's tokenizer files are.
    """

    models: tuple[Checkpoint, ...]
    tensors: tuple[OutputTensor, ...]
    findings: tuple[Finding, ...]
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    tokenizer: TokenizerFiles = BASE_FILES

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)

    def require_aligned(self) -> None:
        """Raise `IncompatibleModels` with every error among the findings."""
        if self.errors:
            raise IncompatibleModels("; ".join(f"{finding.model}: {finding.message}" for finding in self.errors))


def assign_roles(recipe: Recipe, operator: Operator) -> Roles:
    """Split the models of a recipe of whole models into base and experts.

    Without `base_model` the first model is the reference. A model named both as base and in `models`
    is read once, as base: a method that measures the others from it has no use for its parameters,
    any other takes it as one more input.
    """
    if recipe.base is None:
        if not recipe.models:
            raise RecipeError("models: the recipe names no model")
        first, *rest = recipe.models
        return Roles(first.model, first, tuple(rest))
    named = [entry for entry in recipe.models if same_model(entry.model, recipe.base)]
    if not takes_base_as_input(operator):
        return Roles(recipe.base, None, tuple(entry for entry in recipe.models if entry not in named))
    reference = named[0] if named else None
    return Roles(recipe.base, reference, tuple(entry for entry in recipe.models if entry is not reference))


def input_models(recipe: Recipe, operator: Operator) -> tuple[ModelRef, ...]:
    """The models to open, in the order of a composition's `models`.

    Of whole models each entry is an input of its own, the same model named twice too; of slices each
    model is one. Raises `RecipeError` for what the recipe language knows and this program does not.
    """
    _refuse_unsupported(recipe)
    if not recipe.slices:
        roles = assign_roles(recipe, operator)
        return (roles.base, *(entry.model for entry in roles.experts))
    found: list[ModelRef] = [] if recipe.base is None else [recipe.base]
    for source in (source for each in recipe.slices for source in each.sources):
        if not any(same_model(source.model, known) for known in found):
            found.append(source.model)
    return tuple(found)


def compose(recipe: Recipe, operator: Operator, models: Sequence[Checkpoint], rules: FamilyRules) -> Composition:
    """Compose a recipe over its opened `input_models`. What does not fit is among the findings."""
    if recipe.slices:
        return _Slicer(recipe, operator, models, rules).compose()
    roles = assign_roles(recipe, operator)
    reference = None if roles.reference is None else roles.reference.parameters
    experts = [entry.parameters for entry in roles.experts]
    family = align(models[0], models[1:], rules)
    return compose_models(family, recipe.parameters, reference, experts, operator.grain)


def compose_models(
    family: Family,
    shared: Settings,
    reference: Settings | None,
    experts: Sequence[Settings],
    grain: Grain = Grain.ELEMENT,
) -> Composition:
    """Whole models: every tensor of the base, merged with the part each expert has in it."""
    config = family.base.config
    layers = 1 + max((_layer(name, config) or 0 for name in family.base.tensors), default=0)
    tensors = []
    for aligned in family.tensors:
        terms = tuple(
            Term(number + 1, part.tensor, part.elements, (own, shared), number)
            for number, (part, own) in enumerate(zip(aligned.parts, experts, strict=True))
            if part is not None and not aligned.copied
        )
        tensors.append(
            OutputTensor(
                name=aligned.base.name,
                base=aligned.base,
                base_input=0,
                terms=terms,
                copied=aligned.copied,
                place=_place(_layer(aligned.base.name, config), layers),
                reference=None if reference is None else (reference, shared),
                shared=(shared,),
                row_multiple=rows_together(aligned.base.name, aligned.base.shape, config, grain),
            )
        )
    return Composition((family.base, *family.experts), tuple(tensors), family.findings)


def rows_together(name: str, shape: Sequence[int], config: Mapping[str, Any], grain: Grain) -> int:
    """How many rows of a tensor a block may not part."""
    if grain is Grain.ROW and len(shape) == 1:
        return max(1, shape[0])
    return parse_role(name, shape, config).row_multiple


class _Slicer:
    """Composes output layers out of layers of several models (mergekit's `slices`)."""

    def __init__(self, recipe: Recipe, operator: Operator, models: Sequence[Checkpoint], rules: FamilyRules) -> None:
        self._recipe, self._operator, self._rules = recipe, operator, rules
        self._models = tuple(models)
        self._refs = input_models(recipe, operator)
        self._findings: list[Finding] = [
            Finding(Severity.NOTE, model.ref, note) for model in models for note in model.notes
        ]
        self._renamers: dict[tuple[int, int], Callable[[str], str]] = {}

    def compose(self) -> Composition:
        """Layers slice by slice; what is in no layer comes from the first slice, final norm and head from the last."""
        slices = self._recipe.slices
        donor = self._models[0]
        tensors: list[OutputTensor] = []
        origins: list[tuple[int, int]] = []
        tensors += self._outer(slices[0], last=False)
        for each in slices:
            first, stop = _range(each.sources[0])
            for offset in range(stop - first):
                place = _place(offset, stop - first)
                reference, origin = self._layer(each, offset, len(origins), place)
                tensors += reference
                origins.append(origin)
        tensors += self._outer(slices[-1], last=True)
        return Composition(
            self._models, tuple(tensors), tuple(self._findings), _layer_config(donor, self._models, origins)
        )

    def _outer(self, each: OutputSlice, last: bool) -> Iterator[OutputTensor]:
        """Tensors in no layer. Final norm and head belong to the last slice, all others to the first."""
        number, _ = self._reference(each)
        model = self._models[number]
        for name, tensor in model.tensors.items():
            role = parse_role(name, tensor.shape, model.config)
            if _in_stack(name, model.config):
                continue
            if (role.component in ("norm", "lm_head") and role.layer is None) == last:
                yield self._tensor(each, tensor, self._rename(0, number)(name), None, 0.0)

    def _layer(
        self, each: OutputSlice, offset: int, out_layer: int, place: float
    ) -> tuple[list[OutputTensor], tuple[int, int]]:
        number, source = self._reference(each)
        model = self._models[number]
        layer = _range(source)[0] + offset
        inside = [
            t
            for name, t in model.tensors.items()
            if _in_stack(name, model.config) and _layer(name, model.config) == layer
        ]
        if not inside:
            have = 1 + max((_layer(name, model.config) or 0 for name in model.tensors), default=-1)
            message = f"layer_range {list(_range(source))}: there is no layer {layer} (layers 0 to {have - 1} exist)"
            self._findings.append(Finding(Severity.ERROR, model.ref, message))
        named = [(tensor, with_layer(self._rename(0, number)(tensor.name), out_layer)) for tensor in inside]
        return [self._tensor(each, tensor, name, offset, place) for tensor, name in named], (number, layer)

    def _tensor(self, each: OutputSlice, base: TensorInfo, name: str, offset: int | None, place: float) -> OutputTensor:
        number, reference = self._reference(each)
        copied = not base.storage.is_float or is_derived_buffer(base.name)
        shared = (each.parameters, self._recipe.parameters)
        terms: list[Term] = []
        others = [source for source in each.sources if source is not reference]
        for position, source in enumerate(others):
            if copied:
                break
            other = self._input(source.model)
            there = self._rename(number, other, back=False)(base.name)
            if offset is not None:
                there = with_layer(there, _range(source)[0] + offset)
            found = self._models[other].tensors.get(there)
            if found is None:
                message = f"{there} is missing: output tensor {name} is made from it"
                self._findings.append(Finding(Severity.ERROR, self._models[other].ref, message))
                continue
            part, finding = expert_part(self._models[number], self._models[other], base, found, self._rules)
            if finding is not None:
                self._findings.append(finding)
            if part is not None:
                terms.append(Term(other, part.tensor, part.elements, (source.parameters, *shared), position))
        is_input = self._base(each) is None or takes_base_as_input(self._operator)
        return OutputTensor(
            name=name,
            base=base,
            base_input=number,
            terms=tuple(terms),
            copied=copied,
            place=place,
            reference=(reference.parameters, *shared) if is_input else None,
            shared=shared,
            row_multiple=rows_together(name, base.shape, self._models[number].config, self._operator.grain),
        )

    def _base(self, each: OutputSlice) -> SliceSource | None:
        """The source of a slice that is the base; None where there is no base."""
        base = each.base_model or self._recipe.base
        if base is None:
            return None
        for source in each.sources:
            if same_model(source.model, base):
                return source
        if self._operator.needs_base:
            named = ", ".join(str(source.model) for source in each.sources)
            raise RecipeError(
                f"slices: {self._operator.name} measures from the base, but a slice of {named} has no source of "
                f"base_model {base}: add it to the slice's sources with its own layer_range"
            )
        return None

    def _reference(self, each: OutputSlice) -> tuple[int, SliceSource]:
        source = self._base(each) or each.sources[0]
        return self._input(source.model), source

    def _input(self, ref: ModelRef) -> int:
        return next(number for number, known in enumerate(self._refs) if same_model(known, ref))

    def _rename(self, one: int, other: int, back: bool = True) -> Callable[[str], str]:
        """Names of input `one` → names of input `other`; with `back`, the other way round."""
        source, target = (other, one) if back else (one, other)
        key = (source, target)
        if key not in self._renamers:
            names = [with_layer(name, 0) for name in self._models[source].tensors]
            theirs = [with_layer(name, 0) for name in self._models[target].tensors]
            try:
                rule = None if source == target else prefix_between(names, theirs)
            except IncompatibleModels as error:
                message = f"{self._models[source].ref} against {self._models[target].ref}: {error}"
                raise IncompatibleModels(message) from error
            self._renamers[key] = rule if rule is not None else str
        return self._renamers[key]


def _refuse_unsupported(recipe: Recipe) -> None:
    named = [entry.model for entry in recipe.models]
    named += [source.model for each in recipe.slices for source in each.sources]
    for ref in (recipe.base, *named):
        if ref is not None and ref.lora is not None:
            raise RecipeError(f"{ref}: adapters are not supported yet; merge the adapter into its model first")
        if ref is not None and ref.revision is not None:
            raise RecipeError(f"{ref}: revisions need a hub, which is not supported yet; give a local directory")


def same_model(one: ModelRef, other: ModelRef) -> bool:
    """Whether two references name one model."""
    return PurePath(one.path) == PurePath(other.path)


def _range(source: SliceSource) -> tuple[int, int]:
    if source.layer_range is None:
        raise RecipeError(f"slices: {source.model} needs a layer_range: [first, end]")
    return source.layer_range


def _layer(name: str, config: Mapping[str, Any]) -> int | None:
    return parse_role(name, (), config).layer


def _in_stack(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is in a layer of the language model itself."""
    return _layer(name, config) is not None and not any(word in name for word in _TOWERS)


def _place(layer: int | None, layers: int) -> float:
    """As mergekit places a layer: the only layer of a slice at the end, what is in no layer at the start."""
    if layer is None:
        return 0.0
    return layer / (layers - 1) if layers > 1 else 1.0


def _layer_config(
    donor: Checkpoint, models: Sequence[Checkpoint], origins: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """What the donor's config must say of the layers: how many there are, and of what type each is."""
    overrides: dict[str, Any] = {}
    for key in _LAYER_COUNTS:
        if _stated(donor.config, key) is not None:
            overrides[key] = len(origins)
    if isinstance(_stated(donor.config, "layer_types"), list):
        types = []
        for number, layer in origins:
            own = _stated(models[number].config, "layer_types")
            types.append(own[layer] if isinstance(own, list) and layer < len(own) else None)
        if all(kind is not None for kind in types):
            overrides["layer_types"] = types
    return overrides


def _stated(config: Mapping[str, Any], key: str) -> Any:
    nested = config.get("text_config")
    return config[key] if key in config else nested.get(key) if isinstance(nested, Mapping) else None
