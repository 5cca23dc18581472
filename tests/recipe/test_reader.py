"""YAML as text with places."""

import pytest

from mergepipe.errors import RecipeError
from mergepipe.recipe.reader import read_document, unknown_key


def test_scalars_keep_what_was_written() -> None:
    """Words, dates and numbers that YAML 1.1 would turn into something else stay text."""
    document = read_document("{a: no, b: 1e3, c: 2026-01-01, d: 0123, on: x, e: 'off'}", "r.yml").mapping()
    assert {key: place.text() for key, place in document.items()} == {
        "a": "no",
        "b": "1e3",
        "c": "2026-01-01",
        "d": "0123",
        "on": "x",
        "e": "off",
    }


def test_an_error_names_file_line_and_key() -> None:
    """The place of a value is its key's line and its path from the top."""
    document = read_document("a: 1\nb:\n  - c: 2\n    d:\n      e: 3\n", "r.yml").mapping()
    place = document["b"].items()[0].mapping()["d"].mapping()["e"]
    assert str(place.error("is wrong")) == "r.yml:5: b[0].d.e: is wrong"


def test_a_repeated_key_is_refused_with_both_lines() -> None:
    """YAML readers that keep the last of two values hide a mistake; this one does not."""
    with pytest.raises(RecipeError, match=r"^r\.yml:3: a: the key is given twice, in lines 1 and 3"):
        read_document("a: 1\nb: 2\na: 3\n", "r.yml").mapping()


def test_anchors_and_merges_are_followed() -> None:
    """`<<` gives what a mapping does not say itself; of several, the first wins."""
    text = "one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nboth:\n  c: 3\n  <<: [*one, *two]\n"
    both = read_document(text, "r.yml").mapping()["both"].mapping()
    assert {key: place.text() for key, place in both.items()} == {"c": "3", "a": "1", "b": "1"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1, 2\nb: 3\n", r"^r\.yml:2: not valid YAML"),
        ("a: 1\n\tb: 2\n", r"^r\.yml:2: not valid YAML"),
        ("a: *nowhere\n", r"^r\.yml:1: not valid YAML: .*nowhere"),
        ("a: \x01\n", r"^r\.yml: not valid YAML"),
        ("", r"^r\.yml: holds no recipe"),
        ("# only a remark\n", r"^r\.yml: holds no recipe"),
        ("---\n---\n", r"^r\.yml: holds no recipe"),
        ("a: 1\n---\nb: 2\n", r"^r\.yml:3: a second YAML document"),
    ],
)
def test_what_is_no_single_document_is_refused(text: str, says: str) -> None:
    """Broken YAML, nothing at all and several documents are errors with the line."""
    with pytest.raises(RecipeError, match=says):
        read_document(text, "r.yml")


def test_a_final_separator_is_no_second_document() -> None:
    """An empty document after the recipe does not count."""
    assert read_document("a: 1\n---\n", "r.yml").mapping()["a"].text() == "1"


@pytest.mark.parametrize("text", ["a: !!python/name:os.system x", "a: !mine x", "a: !mine {b: c}", "a: !mine [b]"])
def test_foreign_tags_are_refused(text: str) -> None:
    """No tag makes an object of anything; it is an error where the value is read."""
    place = read_document(text, "r.yml").mapping()["a"]
    read = place.mapping if place.is_mapping else place.items if place.is_list else place.text
    with pytest.raises(RecipeError, match="YAML tag"):
        read()


@pytest.mark.parametrize(
    ("text", "found"), [("a:", "nothing"), ("a: ''", "''"), ("a: [b]", "a list"), ("a: {b: c}", "a mapping")]
)
def test_text_that_is_missing_says_what_is_there(text: str, found: str) -> None:
    """Where text is wanted, the message names what was found."""
    with pytest.raises(RecipeError, match=f"a: must be text, found {found}"):
        read_document(text, "r.yml").mapping()["a"].text()


def test_the_kind_of_a_value_is_checked() -> None:
    """A list is no mapping, a mapping no list, and neither may be empty by accident."""
    document = read_document("a: [x]\nb: {x: y}\nc: []\n? [k]\n: v\n", "r.yml")
    with pytest.raises(RecipeError, match=r"r\.yml:4: a key must be plain text"):
        document.mapping()
    document = read_document("a: [x]\nb: {x: y}\nc: []\n", "r.yml")
    places = document.mapping()
    with pytest.raises(RecipeError, match=r"a: must be a mapping .*found a list"):
        places["a"].mapping()
    with pytest.raises(RecipeError, match="b: must be a list, found a mapping"):
        places["b"].items()
    with pytest.raises(RecipeError, match="c: must be a list, found an empty list"):
        places["c"].items()


def test_an_unknown_key_offers_the_nearest() -> None:
    """The error lists what is known here and the likeliest meant."""
    place = read_document("dtpye: x", "r.yml").mapping()["dtpye"]
    assert str(unknown_key(place, "dtpye", ("dtype", "name"))) == (
        'r.yml:1: dtpye: unknown key; did you mean "dtype"? (known here: dtype, name)'
    )
