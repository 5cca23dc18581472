"""Recipe files, and where their models are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.recipe.model import ModelRef
from mergepipe.recipe.parse import load_recipe, parse_recipe, resolve_path

EXAMPLES = Path(__file__).parents[2] / "examples"
TIES = (EXAMPLES / "ties_budget.yml").read_text(encoding="utf-8")


def test_a_file_becomes_a_recipe(tmp_path: Path) -> None:
    """The recipe states what the file says and keeps its text."""
    path = tmp_path / "r.yml"
    path.write_text(TIES, encoding="utf-8")
    recipe = load_recipe(path)
    assert recipe.method == "ties"
    assert recipe.base == ModelRef("./models/base")
    assert [str(each.model) for each in recipe.models] == ["./models/math", "./models/code", "./models/chat"]
    assert [each.parameters["weight"] for each in recipe.models] == [0.6, 0.4, 0.3]
    assert recipe.parameters == {"normalize": True, "lambda": 1.0}
    assert recipe.dtype == "BF16"
    assert recipe.text == TIES


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    """Files of editors that write one are read."""
    path = tmp_path / "r.yml"
    path.write_text(TIES, encoding="utf-8-sig")
    assert load_recipe(path).method == "ties"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yml")), ids=lambda path: path.stem)
def test_every_example_parses(path: Path) -> None:
    """Each example is a valid recipe about which there is nothing to remark."""
    recipe = load_recipe(path)
    assert len(recipe.models) >= 2
    assert recipe.notes == ()


def test_an_error_names_the_file(tmp_path: Path) -> None:
    """File, line and key stand at the head of the message."""
    path = tmp_path / "r.yml"
    path.write_text("merge_method: ties\ndtpye: bfloat16\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=rf'^{path}:2: dtpye: unknown key; did you mean "dtype"'):
        load_recipe(path)


def test_a_file_that_cannot_be_read_is_an_error_naming_it(tmp_path: Path) -> None:
    """A missing file, a folder, a binary and a huge file are refused as recipes."""
    with pytest.raises(RecipeError, match=r"none\.yml: cannot read the recipe: No such file"):
        load_recipe(tmp_path / "none.yml")
    with pytest.raises(RecipeError, match="cannot read the recipe: Is a directory"):
        load_recipe(tmp_path)
    binary = tmp_path / "model.safetensors"
    binary.write_bytes(b"\xff\xfe\x00\x80" * 100)
    with pytest.raises(RecipeError, match=r"model\.safetensors: is not UTF-8 text"):
        load_recipe(binary)
    huge = tmp_path / "huge.yml"
    huge.write_bytes(b"#" * (5 << 20))
    with pytest.raises(RecipeError, match=r"huge\.yml: is larger than"):
        load_recipe(huge)


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    """A document nested beyond any recipe is refused."""
    with pytest.raises(RecipeError, match="nested too deeply"):
        parse_recipe("[" * 20_000, "r.yml")


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_a_recipe_or_a_recipe_error(text: str) -> None:
    """No text makes the parser fail in another way."""
    with pytest.raises(RecipeError):
        parse_recipe(text, "r.yml")


@given(st.data())
def test_a_damaged_recipe_is_a_recipe_or_a_recipe_error(data: st.DataObject) -> None:
    """Cutting lines from a recipe, or changing how they are indented, fails cleanly if it fails."""
    lines = TIES.splitlines()
    for number in data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=4, unique=True)):
        change = data.draw(st.sampled_from(["cut", "left", "right", "value"]))
        line = lines[number]
        lines[number] = {
            "cut": "",
            "left": line.lstrip(),
            "right": "  " + line,
            "value": line.partition(":")[0] + data.draw(st.sampled_from([":", ": []", ": {}", ": [1, a]", ": !x y"])),
        }[change]
    try:
        message = "r.yml: a recipe for " + parse_recipe("\n".join(lines), "r.yml").method
    except RecipeError as error:
        message = str(error)
    assert message.startswith("r.yml:")


def test_a_path_is_taken_from_the_current_directory_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a model is both here and beside the recipe, the one here is meant, as in mergekit."""
    here, folder = tmp_path / "here", tmp_path / "recipes"
    for place in (here, folder):
        (place / "models" / "base").mkdir(parents=True)
    monkeypatch.chdir(here)
    found = Path(resolve_path(ModelRef("./models/base"), folder).path)
    assert found.resolve() == here / "models" / "base"


def test_a_path_is_else_taken_from_the_recipes_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model, or an adapter, that is only beside the recipe is found there; revisions stay."""
    folder = tmp_path / "recipes"
    (folder / "models" / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    found = resolve_path(ModelRef("models/base", "main", ModelRef("models/base")), folder)
    assert Path(found.path).resolve() == folder / "models" / "base"
    assert found.revision == "main"
    assert found.lora is not None
    assert Path(found.lora.path).resolve() == folder / "models" / "base"


def test_a_path_that_is_nowhere_stays_as_written(tmp_path: Path) -> None:
    """What is no local path may name a model elsewhere and is not touched."""
    for text in ("org/model", "s3://bucket/model", "./nowhere", "~/nowhere-at-all"):
        assert resolve_path(ModelRef(text), tmp_path) == ModelRef(text)
