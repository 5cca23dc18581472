"""Every recipe gives mergekit's model: float32 within 64 units in the last place, bfloat16 within one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from mergepipe.operators.registry import MERGEKIT_METHODS, names
from mergepipe.testing.checkpoints import read_floats, read_tensors
from tests.parity.batch import Place
from tests.parity.cases import ARCHITECTURES, FEATURES, METHODS, OUT_DTYPES, Case
from tests.parity.compare import distance
from tests.parity.measure import comparisons
from tests.parity.peer import Outcome

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]  # the first test waits for mergekit's whole batch

CODES = {"float32": "F32", "bfloat16": "BF16"}
# Most of a model must have been compared for a comparison to say anything.
MOST_EXCLUDED = 0.5

METHOD_CASES = [case for cases in METHODS.values() for case in cases]


@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("case", [*METHOD_CASES, *ARCHITECTURES], ids=str)
def test_method(case: Case, out_dtype: str, theirs: Callable[[str], Outcome], place: Place, tmp_path: Path) -> None:
    """A method's recipe gives mergekit's tensors, of mixtures and towers too; a trim keeps as many elements."""
    peer = theirs(f"{case.name}-{out_dtype}")
    assert peer.error is None
    mine = place.ours(case, out_dtype, tmp_path)
    require_same_tensors(mine, peer.out, CODES[out_dtype])
    excluded = total = 0
    for found in comparisons(case, out_dtype, mine, peer.out):
        assert found.distance.within, str(found)
        if case.keeps and out_dtype == "float32":
            assert found.changed[0] == found.changed[1], found.name
        excluded, total = excluded + found.excluded, total + found.mine.size
    assert excluded <= MOST_EXCLUDED * total


@pytest.mark.parametrize("out_dtype", OUT_DTYPES)
@pytest.mark.parametrize("case", FEATURES, ids=str)
def test_feature(case: Case, out_dtype: str, theirs: Callable[[str], Outcome], place: Place, tmp_path: Path) -> None:
    """Slices, vocabularies, templates and several documents give mergekit's tensors, config and tokens."""
    peer = theirs(f"{case.name}-{out_dtype}")
    assert peer.error is None
    mine = place.ours(case, out_dtype, tmp_path)
    require_same_tensors(mine, peer.out, CODES[out_dtype])
    if "config" in case.also:
        require_same_config(mine, peer.out)
    rows: tuple[list[int], list[int]] | None = None
    if "tokenizer" in case.also:
        rows = require_same_tokens(mine, peer.out)
    left, right = read_floats(mine), read_floats(peer.out)
    for name, values in left.items():
        other = right[name]
        if rows is not None and name in ("model.embed_tokens.weight", "lm_head.weight"):
            # Rows go by token: in which order a union numbers new tokens is each program's own affair.
            order, other_order = (with_padding(each, values.shape[0]) for each in rows)
            values, other = values[order], other[other_order]
        # Where an element comes from is the question here: its inputs are taken to be of the tensor's usual size.
        usual = np.full_like(values, np.sqrt(np.mean(np.square(values, dtype=np.float64))))
        found = distance([usual], values, other, out_dtype)
        # Each document's result is rounded before the next takes it: one unit in the last place for each.
        assert found.within or found.worst <= len(case.documents), f"{name}: {found}"


def test_every_method_of_mergekit_has_cases() -> None:
    """No method that mergekit 0.1.5 registers is left out, and all are registered here."""
    assert set(METHODS) == set(MERGEKIT_METHODS)
    assert set(MERGEKIT_METHODS) <= set(names())


def test_cases_have_names_of_their_own() -> None:
    """No case hides another's outcome."""
    every = [case.name for case in (*METHOD_CASES, *FEATURES, *ARCHITECTURES)]
    assert len(set(every)) == len(every)


# ------------------------------------------------------------------------- what is required


def require_same_tensors(mine: Path, theirs: Path, code: str) -> None:
    """The same names and shapes, all in the asked dtype."""
    left, right = read_tensors(mine), read_tensors(theirs)
    assert {name: shape for name, (_, _, shape) in left.items()} == {n: shape for n, (_, _, shape) in right.items()}
    assert {found for found, _, _ in (*left.values(), *right.values())} == {code}


def require_same_config(mine: Path, theirs: Path) -> None:
    """config.json agrees in what a merge may change."""
    left, right = (json.loads((folder / "config.json").read_text()) for folder in (mine, theirs))
    for key in ("architectures", "num_hidden_layers", "vocab_size", "tie_word_embeddings"):
        assert left[key] == right[key], key
    assert left.get("dtype", left.get("torch_dtype")) == right.get("dtype", right.get("torch_dtype"))


def require_same_tokens(mine: Path, theirs: Path) -> tuple[list[int], list[int]]:
    """The same tokens and chat template; returns each side's ids in the order of the tokens' text."""
    left, right = (Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() for folder in (mine, theirs))
    assert set(left) == set(right)
    assert rendered(chat_template(mine)) == rendered(chat_template(theirs))
    order = sorted(left)
    return [left[token] for token in order], [right[token] for token in order]


def chat_template(folder: Path) -> str | None:
    """A model's chat template, from either of the places transformers keeps it in."""
    beside = folder / "chat_template.jinja"
    if beside.exists():
        return beside.read_text()
    config: Mapping[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    return config.get("chat_template")


CONVERSATIONS = [
    [("user", " How? ")],
    [("system", "Be brief.\n"), ("user", "How?"), ("assistant", "So.")],
    [("user", "How?"), ("assistant", " So. "), ("user", "Why?")],
    [("assistant", "No turn of mine.")],
    [("user", "How?"), ("user_context", "Here.")],
]


def rendered(template: str | None) -> list[str] | None:
    """What a template makes of conversations, as transformers renders them; the word for it where it refuses one."""
    if template is None:
        return None

    def refuse(_: str) -> None:
        raise ValueError

    found = []
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    for turns in CONVERSATIONS:
        for more in (False, True):
            messages = [{"role": role, "content": content} for role, content in turns]
            try:
                text = environment.from_string(template).render(
                    messages=messages, add_generation_prompt=more, bos_token="<s>", eos_token="</s>"
                )
            except ValueError:
                text = "refused"
            found.append(text)
    return found


def with_padding(ids: list[int], rows: int) -> list[int]:
    """`ids`, then the rows that no token has."""
    return [*ids, *sorted(set(range(rows)) - set(ids))]
