"""sidecar/card.py: a README that the Hub can read, whatever the names hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.sidecar.card import CardFields, hub_id, model_card

FIELDS = CardFields(
    title="merged",
    method="ties@mergekit",
    base_ref="models/base",
    expert_refs=("models/math", "models/code"),
    recipe="merge_method: ties\nmodels:\n  - model: models/math\n",
    read_lines=("expert bytes read: 1,000 of 10,000 (10.0 %)", "base bytes read: 5,000"),
    bound_line="certified: ‖error‖₂ ≤ 0.5",
    plan_digest="sha256:00ff",
)
SNAPSHOT = "/home/me/.cache/huggingface/hub/models--meta-llama--Llama-3.2-1B/snapshots/0123abcd"


def front_matter(card: str) -> dict[str, Any]:
    """The card's YAML, loaded."""
    _, front, _ = card.split("---\n", 2)
    loaded: dict[str, Any] = yaml.safe_load(front)
    return loaded


def test_the_card_says_what_was_merged_how_and_at_what_distance() -> None:
    """Models in order, method, bytes, bound, recipe and plan are all there."""
    card = model_card(FIELDS)
    assert card.startswith("---\nlibrary_name: transformers\n")
    for text in (
        "`models/base`",
        "`models/math`",
        "`models/code`",
        "`ties@mergekit`",
        "10,000",
        "certified",
        "sha256:00ff",
    ):
        assert text in card
    assert card.index("models/math") < card.index("models/code")
    assert f"```yaml\n{FIELDS.recipe}```" in card
    assert front_matter(card)["tags"] == ["merge", "mergepipe"]


def test_only_models_known_to_be_the_hubs_are_claimed_as_base_models() -> None:
    """A relative path that looks like a Hub id is not put into the lineage; a cache snapshot is, once."""
    assert "base_model" not in front_matter(model_card(FIELDS))
    front = front_matter(
        model_card(replace(FIELDS, base_ref=SNAPSHOT, expert_refs=("a/b", "hf://org/x@main", SNAPSHOT)))
    )
    assert front["base_model"] == ["meta-llama/Llama-3.2-1B", "org/x"]
    assert front["base_model_relation"] == "merge"


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (SNAPSHOT, "meta-llama/Llama-3.2-1B"),
        (SNAPSHOT + "/", "meta-llama/Llama-3.2-1B"),
        ("hf://org/name", "org/name"),
        ("hf://org/name@abc123", "org/name"),
        ("org/name", None),
        ("./org/name", None),
        ("/models/org/name", None),
        ("hf://name", None),
        ("hf://org/name/sub", None),
        ("hf://org/na me", None),
        (SNAPSHOT.rpartition("/snapshots")[0], None),
    ],
)
def test_proof_of_the_hub(ref: str, expected: str | None) -> None:
    """Only a cache snapshot or an explicit address counts."""
    assert hub_id(ref) == expected


def test_markup_in_names_stays_text() -> None:
    """Backticks, headings, tags and fences in what users wrote cannot change the card's structure."""
    card = model_card(
        replace(
            FIELDS,
            title="# a\n---\n<script>",
            expert_refs=("we`ird/``x`",),
            recipe="name: |\n  ```\n  # not a heading\n",
            bound_line="see [here](x)\n# no",
        )
    )
    assert "# \\# a --- \\<script\\>\n" in card
    assert "* ``` we`ird/``x` ```\n" in card
    assert "````yaml\nname: |\n  ```\n  # not a heading\n````" in card
    assert "see \\[here\\](x) \\# no" in card
    assert card.count("\n---\n") == 1


def test_a_reference_model_without_base_is_no_base() -> None:
    """Recipes without `base_model` list their models only."""
    card = model_card(replace(FIELDS, base_ref=None, expert_refs=("models/math",)))
    assert "* base:" not in card
    assert "A merge of 1 model by" in card


@given(st.text(), st.lists(st.text(), max_size=3), st.text())
def test_any_text_gives_a_card_with_readable_front_matter(title: str, refs: list[str], recipe: str) -> None:
    """Whatever the strings, the same card twice, encodable, with one heading and a front matter that parses."""
    fields = replace(FIELDS, title=title, expert_refs=tuple(refs), recipe=recipe)
    card = model_card(fields)
    assert card == model_card(fields)
    card.encode()
    assert front_matter(card)["library_name"] == "transformers"


def test_file_names_that_are_not_unicode_are_written_escaped() -> None:
    """A path from a shell may hold any bytes; the card stays UTF-8."""
    card = model_card(replace(FIELDS, expert_refs=(b"mod\xffel".decode("utf-8", "surrogateescape"),)))
    assert "mod\\udcffel" in card
