from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from mergepipe.operators import registry
from mergepipe.operators.contract import AccessClass
from mergepipe.testing.operators import OperatorContract

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "methods.md").read_text(encoding="utf-8")
BUDGETS = {AccessClass.COUPLED: "no: full read", AccessClass.REQUIRED: "no: all is required",
           AccessClass.RESOLVED: "yes, from inner products"}  # fmt: skip


def at_a_glance() -> dict[str, tuple[str, str, str]]:
    """The page's first table: parity, budget and bound of every method."""
    section = PAGE.split("## At a glance")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {name: (parity, budget, bound) for name, parity, budget, bound in rows}


def _example() -> dict[str, Any]:
    """The names that the page's code blocks define, run one after another."""
    names: dict[str, Any] = {"__name__": "docs_methods"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/methods.md", "exec"), names)  # our own page
    return names


class TestPageExample(cast("type[OperatorContract]", _example()["TestMeanDelta"])):  # type: ignore[misc]
    """The page's example keeps the contract it explains."""


@pytest.mark.parametrize("name", registry.names())
def test_page_lists_every_method(name: str) -> None:
    """Every method, variant and parameter of the package is on the page, so that the table cannot fall behind."""
    assert f"`{name}`" in PAGE
    for variant in registry.variants(name):
        operator = registry.operator(name, variant)
        assert f"`{operator.version}`" in PAGE
        for parameter in operator.parameters:
            assert f"`{parameter.name}`" in PAGE


def test_the_first_table_says_which_methods_a_budget_can_cut() -> None:
    """Every method is in it, with what its class of access allows. `tests/laws/test_every_method.py` has the bounds."""
    found = {name: budget for name, (_, budget, _) in at_a_glance().items()}
    classes = {name: registry.operator(name, None).access for name in registry.names()}
    assert found == {name: BUDGETS.get(access, "yes") for name, access in classes.items()}


def test_the_first_table_has_the_measured_parity() -> None:
    """Its figures are those of the page on parity."""
    measured = re.findall(r"^\| `(\w+)` \| \d+ \| (\d+) \|", (DOCS / "parity.md").read_text("utf-8"), re.MULTILINE)
    assert {name: parity.split(";")[0] for name, (parity, *_) in at_a_glance().items()} == dict(measured)
