"""What the package can do so far, found by asking it: a case beyond that is not collected."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from mergepipe import api
from mergepipe.errors import UsageError
from mergepipe.operators.registry import names
from tests.parity.batch import Place
from tests.parity.cases import CHAT, METHODS, MULTI, SLICES, TOKENIZERS, Case

_EXAMPLES = {
    "slices": SLICES[0],
    "tokenizer": TOKENIZERS[0],
    "chat_template": CHAT[0],
    "documents": MULTI[0],
}


def supported(case: Case) -> bool:
    """Whether the case's method is registered and everything it needs is there."""
    return case.method in names() and all(capable(need) for need in case.needs) and computed(case)


def computed(case: Case) -> bool:
    """Whether the engine can compute the facts that the case's method asks for."""
    if case.documents or case.needs:
        return not any(recipe.get("merge_method") in beyond() for recipe in (case.recipe, *case.documents))
    return _plans(case)


@cache
def beyond() -> frozenset[str]:
    """Methods none of whose recipes can be planned."""
    return frozenset(method for method, cases in METHODS.items() if not any(_plans(case) for case in cases))


@cache
def _plans(case: Case) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        config = place.folder / "recipe.yml"
        config.write_text(place.texts(case, "float32", case.recipe))
        try:
            api.plan(config, index=api.IndexOptions(place.folder / "index"))
        except UsageError as error:
            return "cannot be computed yet" not in str(error)
    return True


@cache
def capable(need: str) -> bool:
    """Whether planning an example is refused as something still to come; any other failure is a test's business."""
    example = _EXAMPLES[need]
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        config = place.folder / "recipe.yml"
        config.write_text(place.texts(example, "float32", example.recipe))
        try:
            api.plan(config, index=api.IndexOptions(place.folder / "index"))
        except UsageError as error:
            return not any(words in str(error) for words in ("not supported", "supported yet"))
    return True
