"""Parameter values by level, filter and layer."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Parameter
from mergepipe.recipe.model import Filtered, FilteredValue, Gradient, Scalar, Settings
from mergepipe.recipe.settings import coerce_scalar, parse_number, resolve_setting

WEIGHT = Parameter("weight", float)
DENSITY = Parameter("density", float, 1.0, low=0.0, high=1.0)
NORMALIZE = Parameter("normalize", bool, True)
STEPS = Parameter("steps", int, 10, low=1)
MODE = Parameter("mode", str, "sum")

TENSOR = "model.layers.3.self_attn.q_proj.weight"
finite = st.floats(-1e6, 1e6)
positions = st.integers(1, 40).flatmap(lambda n: st.integers(0, n).map(lambda i: i / n))


def resolve(parameter: Parameter, *levels: Settings, t: float = 0.0, tensor: str = TENSOR) -> Scalar:
    """The value of a parameter under its own name."""
    return resolve_setting(parameter.name, levels, tensor, t, parameter)


def exact_interpolation(values: list[float], t: float) -> float:
    """The polyline through equally spaced values, in rational arithmetic, by weighing hat functions."""
    at = Fraction(t) * (len(values) - 1)
    return float(sum(Fraction(value) * max(Fraction(0), 1 - abs(at - i)) for i, value in enumerate(values)))


@given(st.lists(finite, min_size=1, max_size=9), positions)
def test_a_gradient_is_the_polyline_through_its_values(values: list[float], t: float) -> None:
    """Interpolation agrees with exact rational arithmetic up to float64 rounding."""
    found = resolve(WEIGHT, {"weight": Gradient(tuple(values))}, t=t)
    scale = max(map(abs, values))
    assert math.isclose(float(found), exact_interpolation(values, t), rel_tol=1e-12, abs_tol=1e-13 * scale + 1e-300)


@given(st.lists(finite, min_size=2, max_size=9))
def test_a_gradient_hits_its_ends(values: list[float]) -> None:
    """The first layer takes the first value exactly, the last layer the last."""
    setting = {"weight": Gradient(tuple(values))}
    assert resolve(WEIGHT, setting, t=0.0) == values[0]
    assert resolve(WEIGHT, setting, t=1.0) == values[-1]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9), st.floats(0.0, 1.0))
def test_a_gradient_of_allowed_values_stays_allowed(values: list[float], t: float) -> None:
    """Rounding while interpolating never leaves the parameter's range."""
    assert 0.0 <= float(resolve(DENSITY, {"density": Gradient(tuple(values))}, t=t)) <= 1.0


def test_booleans_and_texts_step() -> None:
    """Between two values that are not numbers, the earlier one holds."""
    switch = {"normalize": Gradient((True, False, True))}
    assert [resolve(NORMALIZE, switch, t=t) for t in (0.0, 0.49, 0.5, 0.99, 1.0)] == [True, True, False, False, True]
    assert resolve(MODE, {"mode": Gradient(("sum", "count"))}, t=0.9) == "sum"


def test_whole_numbers_stay_whole() -> None:
    """A gradient of a whole-number parameter is refused where it passes between whole numbers."""
    assert resolve(STEPS, {"steps": Gradient((10, 20))}, t=0.5) == 15
    with pytest.raises(RecipeError, match="whole number"):
        resolve(STEPS, {"steps": Gradient((1, 2))}, t=0.5)


names = st.sampled_from(["self_attn", "mlp", "q_proj", "layers.3.", "norm", "embed"])
entries = st.lists(st.tuples(st.one_of(st.none(), names), finite), min_size=1, max_size=5)
level = st.one_of(st.none(), finite, entries)


@given(st.lists(level, max_size=4), st.sampled_from([TENSOR, "model.norm.weight", "lm_head.weight"]))
def test_levels_and_filters_agree_with_a_flat_search(
    levels: list[float | list[tuple[str | None, float]] | None], tensor: str
) -> None:
    """The value is the first fitting one of all levels' entries laid end to end, else the default."""
    flat: list[tuple[str | None, float]] = []
    settings: list[Settings] = []
    for each in levels:
        if each is None:
            settings.append({"other": 7.0})
        elif isinstance(each, float):
            settings.append({"density": each})
            flat.append((None, each))
        else:
            settings.append({"density": Filtered(tuple(FilteredValue(*entry) for entry in each))})
            flat.extend(each)
    expected = next((value for text, value in flat if text is None or text in tensor), 0.25)
    assert resolve(Parameter("density", float, 0.25), *settings, tensor=tensor) == expected


def test_a_filter_may_hold_a_gradient() -> None:
    """An entry's value is resolved by the layer like any other."""
    setting = Filtered((FilteredValue("mlp", 0.1), FilteredValue("self_attn", Gradient((0.0, 1.0)))))
    assert resolve(WEIGHT, {"weight": setting}, t=0.25) == 0.25


def test_a_required_value_that_no_filter_gives_is_an_error_naming_the_tensor() -> None:
    """Where all filters miss and there is no default, key and tensor are named."""
    with pytest.raises(RecipeError, match=r'"weight".*q_proj\.weight'):
        resolve(WEIGHT, {"weight": Filtered((FilteredValue("mlp", 0.1),))})


def test_a_layer_outside_the_slice_is_a_programming_error() -> None:
    """The position is checked, so a wrong one cannot pick a value from the wrong end."""
    with pytest.raises(ValueError, match="layer position"):
        resolve(WEIGHT, {"weight": Gradient((0.0, 1.0))}, t=-0.5)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-5", 1e-5), ("1E3", 1000.0), (".5", 0.5), ("5.", 5.0), ("-3", -3), ("+0.25", 0.25), ("0", 0), ("1_000", 1000)],
)
def test_decimal_text_is_a_number(text: str, number: float) -> None:
    """Numbers are read as people write them, whatever YAML 1.1 makes of them."""
    assert parse_number(text) == number
    assert coerce_scalar(text, WEIGHT) == float(number)


@pytest.mark.parametrize(
    ("value", "parameter", "says"),
    [
        ("abc", WEIGHT, "must be a number"),
        ("0x10", WEIGHT, "must be a number"),
        ("1:30", WEIGHT, "must be a number"),
        (".nan", WEIGHT, "finite"),
        ("-.inf", WEIGHT, "finite"),
        ("1e999", WEIGHT, "finite"),
        (math.nan, WEIGHT, "finite"),
        ("010", WEIGHT, "leading zero"),
        (True, WEIGHT, "must be a number"),
        ("true", WEIGHT, "must be a number"),
        ("1.5", DENSITY, r"between 0\.0 and 1\.0"),
        ("-0.1", DENSITY, r"between 0\.0 and 1\.0"),
        ("0", STEPS, "at least 1"),
        ("2.5", STEPS, "whole number"),
        ("9" * 5000, STEPS, "finite"),
        ("maybe", NORMALIZE, "true or false"),
        ("2", NORMALIZE, "true or false"),
        (1.0, MODE, "must be text"),
    ],
)
def test_what_a_parameter_does_not_allow_is_refused(value: Scalar, parameter: Parameter, says: str) -> None:
    """Wrong kinds, NaN, infinity and numbers out of range are errors that say what is wanted."""
    with pytest.raises(RecipeError, match=says):
        coerce_scalar(value, parameter)


@pytest.mark.parametrize("word", ["true", "True", "yes", "on", "1", "y", True, 1])
def test_words_for_true(word: Scalar) -> None:
    """Every spelling that mergekit takes for true is true."""
    assert coerce_scalar(word, NORMALIZE) is True


@pytest.mark.parametrize("word", ["false", "No", "off", "0", "n", False, 0])
def test_words_for_false(word: Scalar) -> None:
    """Every spelling that mergekit takes for false is false."""
    assert coerce_scalar(word, NORMALIZE) is False


def test_kinds_are_made_exact() -> None:
    """A float parameter holds a float and a whole-number parameter an int, however written."""
    assert type(coerce_scalar("1", WEIGHT)) is float
    assert type(coerce_scalar(1, WEIGHT)) is float
    assert type(coerce_scalar("5.0", STEPS)) is int
