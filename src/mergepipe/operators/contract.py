"""What a merge method is: parameters, needs, coefficients, arithmetic on a tile, and its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.arrays import Array, Namespace, Scratch
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need

Number = float | int | bool
Values = Mapping[str, Number | str]
# Writes one expert's task vector θᵢ − θ₀, for the elements of a tile, into the array it is given.
Delta = Callable[[Array], None]


class AccessClass(str, Enum):
    """What leaving a block unread does to the result (design: semantics)."""

    ADDITIVE = "additive"
    SIGN_ELECTED = "sign-elected"
    RESOLVED = "coefficient-resolved"
    ELEMENTWISE = "elementwise"
    COUPLED = "coupled"
    REQUIRED = "required"


class Grain(str, Enum):
    """The least a tile must hold: single elements, or whole rows of the last dimension."""

    ELEMENT = "element"
    ROW = "row"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One recipe parameter. `per_model` ones belong to an input, the others to the merge.

    `kind` is float, int, bool or str; `default` None means it must be given. Numbers are checked
    against `[low, high]`.
    """

    name: str
    kind: type
    default: Number | str | None = None
    per_model: bool = False
    low: float | None = None
    high: float | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class TermSpec:
    """One expert of one output tensor: its place in the recipe (base not counted) and its parameters."""

    position: int
    parameters: Values = field(hash=False)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One output tensor as an operator sees it, before facts.

    `elements` and `row` (length of the last dimension) are in elements. `reference` holds the
    parameters of the base where the base is itself an input of the merge, else None. All mappings of
    parameters are complete: each declared parameter has a value of its kind. `wide` says that tiles
    are float64, not float32. `shape` is the output's, () for a scalar or where it does not matter.
    """

    name: str
    elements: int
    row: int
    seed: int
    parameters: Values = field(hash=False)
    terms: tuple[TermSpec, ...]
    reference: Values | None = field(default=None, hash=False)
    wide: bool = False
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class Tile:
    """A run of elements of one tensor in memory.

    `start` is its first element's position in the tensor. `base` is θ₀ and must not be changed.
    `deltas[i](out)` writes expert i's task vector θᵢ − θ₀ into `out`; it is None where the expert's
    block is not read. `scratch` lends temporaries; of `base` and of what the result is written to
    no memory is shared with it, nor with each other.
    """

    start: int
    count: int
    base: Array
    deltas: Sequence[Delta | None]
    scratch: Scratch
    xp: Namespace = np


Norms = NDArray[np.float64]
Reads = NDArray[np.bool_]
Sizes = NDArray[np.int64]


class Operator(Protocol):
    """A merge method: one instance per name and variant, stateless.

    The coefficients are whatever `resolve` returns: frozen, made of plain numbers that the tile's
    dtype holds exactly, so that every array library computes with the same scalars.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The full name with its variant, as manifests record it: `"ties@mergekit"`."""
        ...

    @property
    def access(self) -> AccessClass: ...

    @property
    def grain(self) -> Grain: ...

    @property
    def needs_base(self) -> bool:
        """Whether the recipe must name a `base_model`."""
        ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    @property
    def doc(self) -> str:
        """One line with the formula and its source."""
        ...

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """For each term, the facts of its whole delta that `resolve` wants, in order."""
        ...

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        """Facts of all terms together that `resolve` wants, in order; () for methods whose terms are independent."""
        ...

    def resolve(self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()) -> Any:
        """Parameters and facts → coefficients. Raises `RecipeError` where the formula has no value."""
        ...

    def scratch_arrays(self, terms: int) -> int:
        """How many float arrays of a tile's size `combine` takes at most for `terms` experts."""
        ...

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        """Write the merged elements into `out`; where the update is ±0 the base's bits are kept."""
        ...

    def copies_unread(self, coefficients: Any) -> bool:
        """Whether a block no expert of which is read equals the base bit for bit (`a₀ = 1`)."""
        ...

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        """For each term `|cᵢ| gᵢ`: the most its delta's norm can add to the error when omitted.

        For sign-elected methods, which know no such number, what selection takes in its place.
        """
        ...

    def exact_gains(self, coefficients: Any) -> bool:
        """Whether the update is a sum of terms whose norms are `gains[i]·‖δᵢ‖`, not only at most that."""
        ...

    def base_gain(self, coefficients: Any) -> float:
        """`|a₀|`."""
        ...

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        """Per block, an upper bound of ‖e_b‖ in exact arithmetic, or the reason why there is none.

        `norms[i, b]` = ‖δᵢ,b‖₂ and `read[i, b]` are of shape (terms, blocks); `sizes[b]` is how many
        elements a block has, None where the caller does not know. Blocks all of whose nonzero deltas
        are read give 0. Coefficients count as exact; the value is computed in float64, without
        directed rounding.
        """
        ...


def takes_base_as_input(operator: Operator) -> bool:
    """Whether a recipe's `base_model` is one more input (linear), not the origin of the others.

    Without a `base_model` the first model is an input whatever the method.
    """
    return not operator.needs_base and operator.access is not AccessClass.RESOLVED
