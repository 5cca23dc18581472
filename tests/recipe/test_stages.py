"""Files of several recipes: their order, and models that are names of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from mergepipe import api
from mergepipe.errors import MergePipeError, RecipeError, UsageError
from mergepipe.recipe.model import InputModel, ModelRef, OutputSlice, Recipe, SliceSource
from mergepipe.recipe.stages import in_order, with_stages
from mergepipe.testing.checkpoints import read_floats, write_family


def recipe(name: str | None, *models: str, base: str | None = None) -> Recipe:
    """A recipe of whole models."""
    inputs = tuple(InputModel(ModelRef(model)) for model in models)
    return Recipe("linear", inputs, base=None if base is None else ModelRef(base), name=name)


def test_recipes_come_after_those_they_use() -> None:
    """However they are written; the unnamed one is last."""
    last, middle, first = recipe(None, "b", "x"), recipe("b", "a", "y", base="a"), recipe("a", "z")
    for given in ((last, middle, first), (first, last, middle), (middle, first, last)):
        assert in_order(given, "r.yml") == (first, middle, last)
    assert in_order((last,), "r.yml") == (last,)


def test_of_named_recipes_the_one_that_none_uses_is_the_result() -> None:
    """As in files of mergekit-multi, where all may have names."""
    last, first = recipe("last", "first", "x"), recipe("first", "y")
    for given in ((last, first), (first, last)):
        assert in_order(given, "r.yml") == (first, recipe(None, "first", "x"))


def test_a_recipe_by_itself_may_have_any_name() -> None:
    """Many published ones do; it is OUT's all the same."""
    for name in ("mine", "me/mine", ".."):
        assert in_order((recipe(name, "x", "mine"),), "r.yml") == (recipe(None, "x", "mine"),)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((recipe("a", "x"), recipe("a", "y"), recipe(None, "a")), "'a' is given to two"),
        ((recipe("../a", "x"), recipe(None, "y")), "cannot be a folder's name"),
        ((recipe("a", "x"), recipe("b", "y")), "0 of 2 recipes have no `name:`"),
        ((recipe(None, "x"), recipe(None, "y")), "2 of 2 recipes have no `name:`"),
        ((recipe("a", "b"), recipe("b", "a"), recipe(None, "a")), "need each other"),
    ],
)
def test_what_has_no_order_is_refused(given: tuple[Recipe, ...], words: str) -> None:
    """Names twice, no result or several, circles."""
    with pytest.raises(RecipeError, match=f"^r.yml: .*{words}"):
        in_order(given, "r.yml")


def test_names_become_places_wherever_models_stand() -> None:
    """In models, base and slices; other paths stay."""
    source = SliceSource(ModelRef("a"), (0, 1))
    given = Recipe("linear", slices=(OutputSlice((source,), ModelRef("a")),), base=ModelRef("x"))
    settled = with_stages(given, {"a": Path("/made/a")})
    assert settled.slices[0].sources[0].model.path == settled.slices[0].base_model.path == "/made/a"  # type: ignore[union-attr]
    assert settled.base == ModelRef("x")
    assert with_stages(recipe(None, "a", "b"), {"a": Path("/m")}).models[0].model.path == "/m"


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    """A file whose result is the mean of an expert and a mean of two others."""
    family = write_family(tmp_path / "family", experts=3, dtype="F32")

    def mean(*models: str) -> Mapping[str, object]:
        return {"merge_method": "linear", "models": [{"model": m, "parameters": {"weight": 1}} for m in models]}

    final = mean("pair", str(family.experts[2]))
    pair = {**mean(*map(str, family.experts[:2])), "name": "pair"}
    path = tmp_path / "stages.yml"
    path.write_text(f"{json.dumps(final)}\n---\n{json.dumps(pair)}\n")
    return path


def test_stages_are_published_and_kept(stages: Path, tmp_path: Path) -> None:
    """Each stage is a model of its own that replays; run again, an unchanged stage is not made anew."""
    out = tmp_path / "out"
    index = api.IndexOptions(tmp_path / "index")
    result = api.merge(stages, out, index=index)
    one, two, three = (read_floats(tmp_path / "family" / f"expert{n}") for n in (1, 2, 3))
    for name, values in read_floats(out).items():
        np.testing.assert_allclose(values, (one[name] + two[name]) / 4 + three[name] / 2, rtol=1e-5, atol=1e-6)
    made = tmp_path / "out.stages" / "pair"
    assert [each["output"] for each in result["stages"]] == [str(made)]
    before = made.stat().st_mtime_ns
    api.merge(stages, tmp_path / "again", index=index, intermediate=tmp_path / "out.stages")
    assert made.stat().st_mtime_ns == before
    api.replay(out, tmp_path / "replayed")
    assert api.verify(made).ok


def test_a_budget_of_several_recipes_is_a_share(stages: Path, tmp_path: Path) -> None:
    """Bytes for all together would have to be shared out."""
    with pytest.raises(UsageError, match="give a share"):
        api.merge(stages, tmp_path / "out", api.PlanOptions(budget="1MB"))
    result = api.merge(stages, tmp_path / "out", api.PlanOptions(budget="50%", block_bytes=64))
    for each in (result, *result["stages"]):
        assert each["expert_bytes"]["read"] <= 0.5 * each["expert_bytes"]["full"]


def test_other_commands_take_one_recipe(stages: Path) -> None:
    """They say what they found."""
    with pytest.raises(MergePipeError, match="second YAML document"):
        api.check(stages)
