"""What a merge must know of its models' tokenizers, read once: vocabularies, chat template, token ids in configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mergepipe.checkpoint.strictjson import parse_object
from mergepipe.core.suggest import did_you_mean
from mergepipe.errors import FormatError, RecipeError
from mergepipe.sidecar.chat import NAMED, most_common, read_template
from mergepipe.sidecar.tokenizer import FILE, read_file, read_tokenizers, require_numbering
from mergepipe.sidecar.tokenizer_files import GENERATION, other_form, tokenizer_texts
from mergepipe.sidecar.tokens import ModelTokenizer, Place, TokenizerFiles, Tokenizers
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store, resolve

_AUTO = "auto"
_MODEL_CONFIG = "config.json"


def gather_tokenizers(models: Sequence[Place], donor: Place | None, lenient: bool, meter: Meter) -> Tokenizers:
    """Read the tokenizers of all inputs and of `donor`; `lenient` takes a file that is no tokenizer as none."""
    found: list[ModelTokenizer | None] = []
    everyone = [*models, *([] if donor is None else [Place(donor.ref, resolve(donor.url))])]
    try:
        found += read_tokenizers([(each.ref, each.url) for each in everyone], meter)
    except FormatError:
        if not lenient:
            raise
        found = [None] * len(everyone)
    forms = tuple(_other_form(place, meter) for place in models)
    generation = _object_at(models[0], GENERATION, meter)
    if donor is None:
        return Tokenizers(tuple(found), forms, generation=generation)
    place = everyone[-1]
    return Tokenizers(tuple(found[:-1]), forms, found[-1], place, generation, _object_at(place, _MODEL_CONFIG, meter))


def chat_template(wanted: str, models: Sequence[Place], path: str, meter: Meter) -> str | None:
    """The template that a recipe's `chat_template` means; None where "auto" finds no model with one.

    It is "auto" (the one that most models have), the template itself (it holds a brace or a line end), a
    well-known one's name, or `path`: a model directory or a file. Raises `RecipeError` for anything else.
    """
    if wanted == _AUTO:
        templates = []
        for place in {place.url: place for place in models}.values():
            store = open_store(place.url, meter, Purpose.SIDECAR, place.ref)
            try:
                templates.append(read_template(store, place.ref))
            finally:
                store.close()
        return most_common(templates)
    if "{" in wanted or "\n" in wanted:
        return wanted
    if wanted in NAMED:
        return NAMED[wanted]
    there = Path(path)
    if there.is_file() or there.is_dir():
        return _template_at(there, wanted, meter)
    raise RecipeError(
        f"chat_template: {wanted!r} is no template (which holds a brace), no model or file, and no template's name"
        f"{did_you_mean(wanted, NAMED)} (known: auto, {', '.join(NAMED)})"
    )


def _object_at(place: Place, key: str, meter: Meter) -> Mapping[str, Any]:
    """A JSON file of a model directory; empty where it is not there."""
    store = open_store(place.url, meter, Purpose.SIDECAR, place.ref)
    try:
        text = read_file(store, key)
    finally:
        store.close()
    return {} if text is None else parse_object(text, f"{place.ref}/{key}")


def _other_form(place: Place, meter: Meter) -> str | None:
    store = open_store(place.url, meter, Purpose.SIDECAR, place.ref)
    try:
        keys = store.keys()
        return None if FILE in keys else other_form(keys)
    finally:
        store.close()


def _template_at(there: Path, wanted: str, meter: Meter) -> str:
    store = open_store(str(there if there.is_dir() else there.parent), meter, Purpose.SIDECAR, wanted)
    try:
        if there.is_dir():
            template = read_template(store, wanted)
        else:
            text = read_file(store, there.name)
            template = None if text is None else text.decode("utf-8", "replace")
    finally:
        store.close()
    if template is None:
        raise RecipeError(f"chat_template: the model {wanted} has no chat template of its own")
    return template


def require_loadable(files: TokenizerFiles, ids: Mapping[str, int], place: Place, meter: Meter) -> None:
    """Raise unless tokenizer.json, with the tokens added to it, numbers every token as `ids` does."""
    store = open_store(place.url, meter, Purpose.SIDECAR, place.ref)
    try:
        text = tokenizer_texts(files, store, store)[FILE]
    finally:
        store.close()
    assert text is not None
    require_numbering(text, ids, f"{place.ref}/{FILE}")
