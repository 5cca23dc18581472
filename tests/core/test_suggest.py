"""Suggestions in error messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.suggest import did_you_mean, nearest

KNOWN = ("weight", "density", "lambda", "normalize", "rescale", "int8_mask")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("wieght", "weight"),
        ("Weight", "weight"),
        ("densty", "density"),
        ("lamda", "lambda"),
        ("normalise", "normalize"),
        ("int8-mask", "int8_mask"),
    ],
)
def test_a_slip_finds_its_name(typed: str, meant: str) -> None:
    """Swapped, missing, capital and dashed letters lead to the name that was meant."""
    assert nearest(typed, KNOWN) == meant
    assert did_you_mean(typed, KNOWN) == f'; did you mean "{meant}"?'


def test_nothing_near_suggests_nothing() -> None:
    """A name like no other gets no suggestion, and the message no tail."""
    assert nearest("qqq", KNOWN) is None
    assert did_you_mean("qqq", KNOWN) == ""
    assert did_you_mean("anything", ()) == ""


@given(st.text(max_size=12), st.lists(st.sampled_from(KNOWN), unique=True).flatmap(st.permutations))
def test_the_order_of_the_known_names_does_not_matter(typed: str, known: list[str]) -> None:
    """The same set of names gives the same suggestion."""
    assert nearest(typed, known) == nearest(typed, sorted(known))


@given(st.sampled_from(KNOWN))
def test_a_known_name_is_nearest_to_itself(name: str) -> None:
    """An exact name is its own suggestion."""
    assert nearest(name, KNOWN) == name
