"""The recipes that benchmarks merge."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.families import Family, Shape, write_family
from benchmarks.recipes import TEMPLATES, experts_of, recipe_text
from mergepipe import api
from mergepipe.recipe.parse import load_recipe

MICRO = Shape("micro", 1, 16, 2, 1, 8, 24, 100, qk_norm=False)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """A tiny family of three experts."""
    return write_family(tmp_path_factory.mktemp("family"), MICRO, 3)


@pytest.mark.parametrize("method", sorted(TEMPLATES))
def test_every_recipe_is_merged(family: Family, tmp_path: Path, method: str) -> None:
    """Each method's recipe is one that MergePipe reads and merges, with as many experts as it says."""
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(recipe_text(method, family))
    assert load_recipe(recipe).method == method
    result = api.merge(recipe, tmp_path / "out", index=api.IndexOptions(tmp_path / "index"))
    one = family.weights[1].stat().st_size
    assert round(result["expert_bytes"]["full"] / one) == experts_of(method, 3)


def test_weights_add_up_to_one(family: Family, tmp_path: Path) -> None:
    """Equal weights whose sum is 1, of the experts alone or, in `linear`, with the base."""
    for method, count in (("linear", 4), ("ties", 3)):
        recipe = tmp_path / f"{method}.yml"
        recipe.write_text(recipe_text(method, family))
        assert recipe.read_text().count(f"weight: {1 / count!r}") == count


def test_the_first_experts_are_taken(family: Family) -> None:
    """A recipe of fewer experts than the family has names the first."""
    text = recipe_text("ties", family, 2)
    assert [str(model) in text for model in family.experts] == [True, True, False]


def test_what_no_recipe_can_be_made_of() -> None:
    """An unknown method, and one that needs more experts than there are, are errors by name."""
    with pytest.raises(ValueError, match=r"no recipe for method 'blend'; there is one for .*ties"):
        experts_of("blend", 3)
    with pytest.raises(ValueError, match="model_stock merges 2 experts or more, not 1"):
        experts_of("model_stock", 1)
