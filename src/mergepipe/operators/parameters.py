"""Parameters that several methods share, and reading them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from mergepipe.errors import RecipeError
from mergepipe.operators.contract import Parameter, TensorSpec, TermSpec, Values

WEIGHT: Final = Parameter("weight", float, per_model=True, doc="factor of this model's task vector")
DENSITY: Final = Parameter(
    "density", float, 1.0, per_model=True, low=0.0, high=1.0, doc="fraction of the task vector that is kept"
)
LAMBDA: Final = Parameter("lambda", float, 1.0, doc="factor of the whole update")
INT8_MASK: Final = Parameter("int8_mask", bool, False, doc="accepted for mergekit's sake, without effect")


def normalize(default: bool) -> Parameter:
    """The parameter `normalize`, whose default differs from method to method."""
    return Parameter("normalize", bool, default, doc="divide by the sum of the weights")


def rescale(default: bool, doc: str) -> Parameter:
    """The parameter `rescale`, which means something else to each method."""
    return Parameter("rescale", bool, default, doc=doc)


def number(values: Values, name: str) -> float:
    """A parameter's value as a float."""
    return float(values[name])


def weights_of(spec: TensorSpec) -> list[float]:
    """The weights of the terms, in recipe order, as the recipe gives them."""
    return [number(term.parameters, "weight") for term in spec.terms]


def densities_of(spec: TensorSpec) -> list[float]:
    """The densities of the terms, in recipe order."""
    return [number(term.parameters, "density") for term in spec.terms]


def is_sparse(term: TermSpec) -> bool:
    """Whether part of this term's delta counts: not where its weight is 0, nothing is kept, or everything is."""
    return number(term.parameters, "weight") != 0.0 and 0.0 < number(term.parameters, "density") < 1.0


def require_one_term(method: str, spec: TensorSpec) -> None:
    """Raise `RecipeError` where a method that takes one model beside the base is given more."""
    if len(spec.terms) > 1:
        raise RecipeError(
            f"{spec.name}: {method} takes one model beside the base, found {len(spec.terms)}; leave one in models"
        )


def row_of(spec: TensorSpec) -> int:
    """Elements of a row, the last dimension; a vector is one row."""
    return spec.shape[-1] if spec.shape else spec.row


def to_tile(value: float, spec: TensorSpec, what: str) -> float:
    """`value` rounded once to the dtype of the tensor's tiles. Raises `RecipeError` where that overflows."""
    kept = value
    if not spec.wide:
        with np.errstate(over="ignore"):
            kept = float(np.float32(value))
    if not math.isfinite(kept):
        raise RecipeError(f"{spec.name}: {what} is {value:g}, beyond what {_dtype(spec)} holds; give smaller numbers")
    return kept


def tile_weights(weights: Sequence[float], spec: TensorSpec) -> tuple[float, ...]:
    """The terms' weights, each rounded once to the dtype of the tensor's tiles."""
    return tuple(to_tile(weight, spec, f"weight of expert {n + 1}") for n, weight in enumerate(weights))


def _dtype(spec: TensorSpec) -> str:
    return "float64" if spec.wide else "float32"
