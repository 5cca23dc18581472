"""Which input tensors each output tensor is made from, for recipes of whole models and of slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.names import is_derived_buffer, layer_place, pair_names, parse_role, part_beside, with_layer
from mergepipe.checkpoint.rows import RowMap
from mergepipe.errors import IncompatibleModels, RecipeError
from mergepipe.operators.contract import Grain, Operator, takes_base_as_input
from mergepipe.plan.family import (
    Family,
    FamilyRules,
    Finding,
    Severity,
    align,
    expert_part,
    extra_findings,
    listed,
    missing_findings,
)
from mergepipe.plan.stacks import layer_position, require_text_stack, restacked_config, stacks_of
from mergepipe.recipe.model import InputModel, ModelRef, OutputSlice, Recipe, Settings, SliceSource
from mergepipe.sidecar.tokens import BASE_FILES, TokenizerFiles


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

    `place` is where its layer lies in its slice (of whole models in its stack: a tower's layers are
    one of their own), from 0 (first, or in no layer) to 1: gradients are read there. `reference` holds
    the base's own settings where the base is an input; `shared` those of the merge. `row_multiple` is
    how many rows a block keeps together: a head's, or all of a vector where the method looks at whole
    rows. `rows` says how a tensor with a row for each token is put together,
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
    stacks = stacks_of(family.base)
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
                place=stacks.place(aligned.base.name),
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
        self._stacks = [stacks_of(model) for model in models]
        for model, stacks in zip(models, self._stacks, strict=True):
            require_text_stack(model, stacks)
        # Of each model in turn: names it was to give and has not, its tensors of the layers taken, those in use.
        self._missing: list[dict[str, None]] = [{} for _ in models]
        self._offered: list[dict[str, None]] = [{} for _ in models]
        self._used: list[set[str]] = [set() for _ in models]

    def compose(self) -> Composition:
        """Layers slice by slice; what is in no layer comes from the first slice, final norm and head from the last."""
        slices = self._recipe.slices
        layers: list[OutputTensor] = []
        origins: list[tuple[int, int]] = []
        for each in slices:
            first, stop = _range(each.sources[0])
            for offset in range(stop - first):
                layer, origin = self._layer(each, offset, len(origins), layer_position(offset, stop - first))
                layers += layer
                origins.append(origin)
        tensors = [*self._outer(slices[0], last=False), *layers, *self._outer(slices[-1], last=True)]
        tensors += self._completed({tensor.name for tensor in tensors})
        config, unsaid = restacked_config(self._models[0].config, [model.config for model in self._models], origins)
        for key in unsaid:
            message = f"config.json: {key} cannot describe the layers as they are stacked; check the model's config"
            self._findings.append(Finding(Severity.WARNING, self._models[0].ref, message))
        self._report_differences()
        return Composition(self._models, tuple(tensors), tuple(self._findings), config)

    def _completed(self, made: set[str]) -> Iterator[OutputTensor]:
        """What the first model has outside its layers, and the slices' models have not.

        A head that is tied there is made from the embedding; a part beside the language model, and what a
        model computes itself, is copied. Anything else is an error.
        """
        donor, slices = self._models[0], self._recipe.slices
        last, _ = self._reference(slices[-1])
        lacking: dict[Severity, list[str]] = {Severity.NOTE: [], Severity.ERROR: []}
        for name in (*self._outside(0, last=False), *self._outside(0, last=True)):
            if name in made:
                continue
            tensor = donor.tensors[name]
            is_head = parse_role(name, tensor.shape, donor.config).component == "lm_head"
            tied = self._tied_head(last, tensor) if is_head else None
            if tied is not None:
                message = f"{name} is tied there: its embedding {tied.name} is the output's head"
                self._findings.append(Finding(Severity.NOTE, self._models[last].ref, message))
                yield self._tensor(slices[-1], tied, name, None, 0.0)
                continue
            own = bool(part_beside(name)) or is_derived_buffer(name)
            lacking[Severity.NOTE if own else Severity.ERROR].append(name)
            if own:
                yield OutputTensor(name, tensor, 0, (), copied=True, place=0.0, reference=None, shared=())
        for severity, names in lacking.items():
            if names:
                how = "copied from here" if severity is Severity.NOTE else "and without them there is no whole model"
                message = f"{len(names)} tensors are in no slice's model, {how}: {listed(names)}"
                self._findings.append(Finding(severity, donor.ref, message))

    def _tied_head(self, number: int, head: TensorInfo) -> TensorInfo | None:
        model = self._models[number]
        for name, tensor in model.tensors.items():
            if parse_role(name, tensor.shape, model.config).component == "embed" and tensor.shape == head.shape:
                return tensor
        return None

    def _report_differences(self) -> None:
        """Say what models lack of the tensors they were to be a part of, and which of their own have no place."""
        for number, model in enumerate(self._models):
            missing, used = list(self._missing[number]), self._used[number]
            if missing:
                self._findings += missing_findings(self._models[0], model, missing, self._rules)
            extra = [name for name in self._offered[number] if name not in used and not is_derived_buffer(name)]
            self._findings += extra_findings(model, extra)
            beyond = [
                name
                for name in model.tensors
                if (layer := self._stacks[number].layer(name)) is not None and layer >= self._stacks[number].depth
            ]
            left = [name for name in beyond if name not in used]
            if left:
                message = f"{left[0]} and {len(left) - 1} more are of layers the config does not count: not written"
                self._findings.append(Finding(Severity.WARNING, model.ref, message))

    def _outer(self, each: OutputSlice, last: bool) -> list[OutputTensor]:
        """Tensors in no layer of the language model, those that follow its layers from the last slice.

        The output is a model like the first: what that one has no place for is not written.
        """
        number, source = self._reference(each)
        model, donor = self._models[number], self._models[0]
        named = {name: self._rename(0, number)(name) for name in self._outside(number, last)}
        strange = [name for name, out in named.items() if out not in donor.tensors]
        if strange:
            message = (
                f"{len(strange)} tensors are not in {donor.ref}, which the output is like, and not written: "
                f"{listed(strange)}"
            )
            self._findings.append(Finding(Severity.WARNING, model.ref, message))
        for other in each.sources:
            if other is not source:
                self._offered[self._input(other.model)] |= dict.fromkeys(self._outside(self._input(other.model), last))
        return [
            self._tensor(each, model.tensors[name], out, None, 0.0)
            for name, out in named.items()
            if out in donor.tensors
        ]

    def _outside(self, number: int, last: bool) -> Iterator[str]:
        """Names outside the layers of a model's language model: those that follow the layers, or the others."""
        model, stacks = self._models[number], self._stacks[number]
        for name, tensor in model.tensors.items():
            place = layer_place(name)
            inside = place is not None and place[0] == stacks.text
            if not inside and stacks.follows(name, tensor.shape, model.config) == last:
                yield name

    def _layer(
        self, each: OutputSlice, offset: int, out_layer: int, place: float
    ) -> tuple[list[OutputTensor], tuple[int, int]]:
        number, source = self._reference(each)
        layer = _range(source)[0] + offset
        inside = self._of_layer(number, layer)
        if not inside:
            depth = self._stacks[number].depth
            message = f"layer_range {list(_range(source))}: there is no layer {layer} (layers 0 to {depth - 1} exist)"
            self._findings.append(Finding(Severity.ERROR, self._models[number].ref, message))
        for other in each.sources:
            if other is not source:
                self._offer(self._input(other.model), _range(other)[0] + offset)
        named = [(tensor, with_layer(self._rename(0, number)(tensor.name), out_layer)) for tensor in inside]
        return [self._tensor(each, tensor, name, offset, place) for tensor, name in named], (number, layer)

    def _of_layer(self, number: int, layer: int) -> list[TensorInfo]:
        stacks = self._stacks[number]
        return [tensor for name, tensor in self._models[number].tensors.items() if stacks.layer(name) == layer]

    def _offer(self, number: int, layer: int) -> None:
        """Note the tensors of a layer that a slice names, so that none is left over in silence."""
        self._offered[number] |= dict.fromkeys(tensor.name for tensor in self._of_layer(number, layer))

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
            self._used[other].add(there)
            if found is None:
                self._missing[other][there] = None
                continue
            part, finding = expert_part(self._models[number], self._models[other], base, found, self._rules)
            if finding is not None:
                self._findings.append(finding)
            if part is not None:
                terms.append(Term(other, part.tensor, part.elements, (source.parameters, *shared), position))
        self._used[number].add(base.name)
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
            self._renamers[key] = str if source == target else self._renamer(source, target)
        return self._renamers[key]

    def _renamer(self, source: int, target: int) -> Callable[[str], str]:
        # Models of unlike depth are one family here: names are paired without their layers' numbers.
        names = dict.fromkeys(with_layer(name, 0) for name in self._models[source].tensors)
        theirs = dict.fromkeys(with_layer(name, 0) for name in self._models[target].tensors)
        try:
            pairs, rules = pair_names(names, theirs)
        except IncompatibleModels as error:
            message = f"{self._models[source].ref} against {self._models[target].ref}: {error}"
            raise IncompatibleModels(message) from error

        def rename(name: str) -> str:
            place = layer_place(name)
            numberless = with_layer(name, 0)
            there = pairs.get(numberless, rules[0](numberless) if rules else numberless)
            return there if place is None else with_layer(there, place[1])

        return rename


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
