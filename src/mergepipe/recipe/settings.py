"""From what a recipe says of a parameter to its value for one tensor, by mergekit's rules.

Levels are asked from the most specific to the least (source or model, slice, whole merge); the first that
has something to say for this tensor wins. A gradient runs over the layers of its slice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Parameter
from mergepipe.recipe.model import Filtered, Gradient, Scalar, Setting, Settings

_DECIMAL = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?")
# YAML 1.1 reads 010 as eight, YAML 1.2 as ten.
_OCTAL_LOOK = re.compile(r"[+-]?0[\d_]+")
# The words mergekit takes for a boolean, quoted or not.
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1", "1.0"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0", "0.0"})


def resolve_setting(name: str, levels: Sequence[Settings], tensor_name: str, t: float, parameter: Parameter) -> Scalar:
    """The value of parameter `name` for one tensor.

    `levels` are ordered from most to least specific. `t` in [0, 1] is the layer's position inside its slice:
    `layer / (layers - 1)`, 1 for a slice of one layer, 0 for tensors outside the layers. Filters are
    substrings of `tensor_name`; a level whose filters all miss leaves the word to the next, and in the end
    to the default. Raises `RecipeError` where there is no default either, or the value is not one that
    `parameter` allows.
    """
    if not 0.0 <= t <= 1.0:
        raise ValueError(f"layer position must lie in [0, 1], got {t}")
    for level in levels:
        value = _evaluate(level[name], tensor_name, t, parameter) if name in level else None
        if value is not None:
            return value
    if parameter.default is None:
        raise RecipeError(
            f'"{name}" has no value for tensor {tensor_name}: give it in `parameters:`; a list of filters of which '
            "none may fit needs a last entry with only a value"
        )
    return parameter.default


def coerce_scalar(value: Scalar, parameter: Parameter) -> Scalar:
    """`value` as the kind that `parameter` wants; text is read as people write numbers and booleans.

    Raises `RecipeError` (without a place: the caller knows it) for another kind, NaN, infinity, or a number
    outside the parameter's range.
    """
    if parameter.kind is str:
        if not isinstance(value, str):
            raise RecipeError(f"must be text, found {value!r}")
        return value
    if parameter.kind is bool:
        return _boolean(value)
    number = parse_number(value) if isinstance(value, str) else value
    if isinstance(number, bool):
        raise RecipeError(f"must be a number, found {value!r}")
    if not math.isfinite(number):
        raise RecipeError(f"must be a finite number, found {value!r}")
    if parameter.kind is int and number != int(number):
        raise RecipeError(f"must be a whole number, found {value!r}")
    low, high = parameter.low, parameter.high
    if (low is not None and number < low) or (high is not None and number > high):
        raise RecipeError(f"must be {_range(low, high)}, found {value!r}")
    return int(number) if parameter.kind is int else float(number)


def parse_number(text: str) -> float | int:
    """Decimal text to a number: `"1e-5"`, which YAML 1.1 takes for text, too. Raises `RecipeError`."""
    if _OCTAL_LOOK.fullmatch(text):
        raise RecipeError(f"is written {text!r}, which YAML versions read differently: drop the leading zero")
    if text.lower().lstrip("+-") in {".nan", "nan", ".inf", "inf", "infinity"}:
        raise RecipeError(f"must be a finite number, found {text!r}")
    if not _DECIMAL.fullmatch(text):
        raise RecipeError(f"must be a number, found {text!r}")
    digits = text.replace("_", "")
    # A run of digits that no float64 could hold exactly anyway is not worth an unbounded integer.
    return int(digits) if digits.lstrip("+-").isdigit() and len(digits) < 40 else float(digits)


def _evaluate(setting: Setting, tensor_name: str, t: float, parameter: Parameter) -> Scalar | None:
    if isinstance(setting, Filtered):
        for entry in setting.entries:
            if entry.filter is None or entry.filter in tensor_name:
                return _evaluate(entry.value, tensor_name, t, parameter)
        return None
    if isinstance(setting, Gradient):
        return _interpolate(setting, t, parameter)
    return coerce_scalar(setting, parameter)


def _interpolate(gradient: Gradient, t: float, parameter: Parameter) -> Scalar:
    """Numbers run linearly from each value to the next; booleans and texts step."""
    values = [coerce_scalar(value, parameter) for value in gradient.values]
    last = len(values) - 1
    scaled = t * last
    left = int(scaled)
    start, end = values[left], values[min(last, left + 1)]
    if parameter.kind in (bool, str) or isinstance(start, str) or isinstance(end, str):
        return start
    fraction = scaled - left
    # The order of operations is mergekit's, so that float64 results agree to the last bit.
    between = (1 - fraction) * start + fraction * end
    # Both ends are allowed, so rounding alone can leave the range.
    low = between if parameter.low is None else max(between, parameter.low)
    return coerce_scalar(low if parameter.high is None else min(low, parameter.high), parameter)


def _boolean(value: Scalar) -> bool:
    word = str(value).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise RecipeError(f"must be true or false, found {value!r}")


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"between {low} and {high}"
