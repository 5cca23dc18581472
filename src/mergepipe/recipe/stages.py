"""Several recipes in one file, some made from others: the order to make them in, and where each is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from mergepipe.errors import RecipeError
from mergepipe.recipe.model import ModelRef, Recipe, TokenizerSpec


def in_order(recipes: Sequence[Recipe], where: str) -> tuple[Recipe, ...]:
    """The recipes so that each comes after those whose names it uses as models; the unnamed one, OUT's, last.

    A recipe by itself is OUT's, whatever its name; of several that all have names the only one that no other uses.
    Raises `RecipeError` unless exactly one is OUT's so, for names given twice, and for recipes that need each other.
    """
    if len(recipes) == 1:
        return (replace(recipes[0], name=None),)
    names = [recipe.name for recipe in recipes if recipe.name is not None]
    for name in names:
        if name in ("", ".", "..") or "/" in name:
            raise RecipeError(f"{where}: name: {name!r} cannot be a folder's name, which a named recipe's result gets")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"{where}: name: {twice[0]!r} is given to two recipes; names tell them apart")
    if len(names) == len(recipes):
        recipes = _without_last_name(recipes)
        names = [recipe.name for recipe in recipes if recipe.name is not None]
    if len(recipes) - len(names) != 1:
        raise RecipeError(
            f"{where}: {len(recipes) - len(names)} of {len(recipes)} recipes have no `name:`; exactly one must have "
            "none: its result is OUT, the others are made on the way"
        )
    by_name = {recipe.name: recipe for recipe in recipes}
    needs = {recipe.name: [name for name in names if name in _paths(recipe)] for recipe in recipes}
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        circle = " → ".join(str(name) for name in error.args[1])
        raise RecipeError(f"{where}: name: recipes need each other: {circle}") from None
    return tuple(by_name[name] for name in (*(name for name in order if name is not None), None))


def _without_last_name(recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
    """Take the name of the only recipe that no other uses; as given where there are several such, or none."""
    used = {path for recipe in recipes for path in _paths(recipe)}
    last = [recipe for recipe in recipes if recipe.name not in used]
    return tuple(replace(recipe, name=None) if [recipe] == last else recipe for recipe in recipes)


def with_stages(recipe: Recipe, places: Mapping[str, Path]) -> Recipe:
    """The recipe with models that are names of other recipes replaced by where those were published."""

    def settle(ref: ModelRef) -> ModelRef:
        return replace(ref, path=str(places[ref.path])) if ref.path in places else ref

    slices = tuple(
        replace(
            each,
            sources=tuple(replace(source, model=settle(source.model)) for source in each.sources),
            base_model=None if each.base_model is None else settle(each.base_model),
        )
        for each in recipe.slices
    )
    return replace(
        recipe,
        models=tuple(replace(entry, model=settle(entry.model)) for entry in recipe.models),
        slices=slices,
        base=None if recipe.base is None else settle(recipe.base),
        tokenizer=None if recipe.tokenizer is None else _settled(recipe.tokenizer, settle),
    )


def _settled(tokenizer: TokenizerSpec, settle: Callable[[ModelRef], ModelRef]) -> TokenizerSpec:
    tokens = {
        token: source if source.model is None else replace(source, model=settle(source.model))
        for token, source in tokenizer.tokens.items()
    }
    source = settle(tokenizer.source) if isinstance(tokenizer.source, ModelRef) else tokenizer.source
    return replace(tokenizer, source=source, tokens=tokens)


def _paths(recipe: Recipe) -> set[str]:
    return {ref.path for ref in _refs(recipe)}


def _refs(recipe: Recipe) -> Iterator[ModelRef]:
    if recipe.base is not None:
        yield recipe.base
    yield from (entry.model for entry in recipe.models)
    for each in recipe.slices:
        if each.base_model is not None:
            yield each.base_model
        yield from (source.model for source in each.sources)
    if recipe.tokenizer is not None:
        if isinstance(recipe.tokenizer.source, ModelRef):
            yield recipe.tokenizer.source
        yield from (source.model for source in recipe.tokenizer.tokens.values() if source.model is not None)
