from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from mergepipe.operators import registry
from mergepipe.testing.operators import OperatorContract

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")


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
