"""Passthrough: one model as it is, optionally times `scale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mergepipe.core.arrays import Array
from mergepipe.errors import RecipeError
from mergepipe.operators.additive import omitted_sum, subtract_from_base
from mergepipe.operators.contract import (
    AccessClass,
    Grain,
    Norms,
    Operator,
    Parameter,
    Reads,
    Sizes,
    TensorSpec,
    Tile,
)
from mergepipe.operators.parameters import number, to_tile
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need


@dataclass(frozen=True, slots=True)
class PassthroughCoefficients:
    """The factor, and how many terms there are: none where the one input is the base, else one."""

    scale: float
    terms: int


class Passthrough:
    """The method `passthrough`.

    Its one input is the reference (`spec.reference`), which is copied or scaled exactly. As a term beside
    another base it comes out as `θ₀ + (θ₁ − θ₀)`, within the rounding of two operations.
    """

    name = "passthrough"
    version = "passthrough@mergekit"
    access = AccessClass.REQUIRED
    grain = Grain.ELEMENT
    needs_base = False
    parameters = (Parameter("scale", float, 1.0, per_model=True, doc="factor of the model's weights"),)
    doc = "θ = s θ₁, of one model"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """None; `RecipeError` for more than one input."""
        _require_one_input(spec)
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> PassthroughCoefficients:
        """Coefficients; `RecipeError` for more than one input."""
        _require_one_input(spec)
        inputs = [term.parameters for term in spec.terms] if spec.reference is None else [spec.reference]
        scale = number(inputs[0], "scale") if inputs else 1.0
        return PassthroughCoefficients(to_tile(scale, spec, "scale"), len(spec.terms))

    def scratch_arrays(self, terms: int) -> int:
        return 1

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        xp = tile.xp
        read = [delta for delta in tile.deltas if delta is not None]
        if read:
            read[0](out)
            xp.multiply(out, -1.0, out=out)
            subtract_from_base(tile, 1.0, out)
        else:
            out[...] = tile.base
        if coefficients.scale != 1.0:
            xp.multiply(out, coefficients.scale, out=out)

    def copies_unread(self, coefficients: Any) -> bool:
        return bool(coefficients.scale == 1.0)

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return (float(abs(coefficients.scale)),) * int(coefficients.terms)

    def exact_gains(self, coefficients: Any) -> bool:
        return True

    def base_gain(self, coefficients: Any) -> float:
        return float(abs(coefficients.scale))

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        """As of an additive method, though all reads are required: what is left out would be the base's."""
        return omitted_sum(self.gains(coefficients), norms, read)


def _require_one_input(spec: TensorSpec) -> None:
    inputs = len(spec.terms) + (spec.reference is not None)
    if inputs > 1:
        raise RecipeError(
            f"{spec.name}: passthrough takes one model, found {inputs}; leave one, or use slices to stack layers"
        )


OPERATORS: tuple[Operator, ...] = (Passthrough(),)
