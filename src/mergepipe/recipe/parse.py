"""A recipe file, or its text, to a `Recipe`; and where its models are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from mergepipe.errors import RecipeError
from mergepipe.recipe.mergekit import translate
from mergepipe.recipe.model import ModelRef, Recipe
from mergepipe.recipe.reader import Place, read_document, read_documents

# Recipes are a page long; this keeps a checkpoint given by mistake from being read as one.
_MOST_CHARACTERS: Final = 4 << 20


def load_recipe(path: Path) -> Recipe:
    """The one recipe in the YAML file `path`. Raises `RecipeError` naming file, line and key."""
    return parse_recipe(_read(path), str(path))


def load_recipes(path: Path) -> tuple[Recipe, ...]:
    """All recipes in the YAML file `path`, one a document, as written. Raises `RecipeError`."""
    text = _read(path)
    try:
        return tuple(translate(place, _source(place, text)) for place in read_documents(text, str(path)))
    except RecursionError:
        raise RecipeError(f"{path}: is nested too deeply for a recipe") from None


def _source(place: Place, text: str) -> str:
    """The text of one document."""
    return text[place.node.start_mark.index : place.node.end_mark.index]


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise RecipeError(f"{path}: is not UTF-8 text; a recipe is a YAML file") from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot read the recipe: {error.strerror or error}") from None
    if len(text) > _MOST_CHARACTERS:
        raise RecipeError(f"{path}: is larger than {_MOST_CHARACTERS:,} characters; a recipe is a short YAML file")
    return text


def parse_recipe(text: str, where: str) -> Recipe:
    """The recipe that `text` (YAML in mergekit's dialect) states; `where` names it in errors.

    Opens no model and no other file. Raises `RecipeError` naming `where`, line and key.
    """
    try:
        return translate(read_document(text, where), text)
    except RecursionError:
        raise RecipeError(f"{where}: is nested too deeply for a recipe") from None


def resolve_path(ref: ModelRef, yaml_folder: Path) -> ModelRef:
    """`ref` with its local paths made usable from the current directory.

    A path is taken relative to the current directory, as mergekit does; where nothing is there, relative to
    the recipe's folder, if something is there. Otherwise it stays as written: it may name a model elsewhere.
    The same holds for the adapter's path.
    """
    lora = resolve_path(ref.lora, yaml_folder) if ref.lora else None
    return replace(ref, path=_locate(ref.path, yaml_folder), lora=lora)


def _locate(path: str, yaml_folder: Path) -> str:
    here = Path(path).expanduser() if path.startswith("~/") else Path(path)
    beside = yaml_folder / here
    if here.exists():
        return str(here)
    return str(beside) if beside.exists() else path
