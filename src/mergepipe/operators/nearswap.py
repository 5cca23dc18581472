"""NearSwap: move towards the other model, in each element at most by `t`: `θ = θ₀ + clamp(δ, −t, t)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mergepipe.core.arrays import Array
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
from mergepipe.operators.parameters import number, require_one_term, to_tile
from mergepipe.stats.contract import Fact, GroupFact, GroupNeed, Need


@dataclass(frozen=True, slots=True)
class NearswapCoefficients:
    """The most an element moves, and how many terms there are (one, or none where the tensor has no expert)."""

    t: float
    terms: int


class Nearswap:
    """The method `nearswap`."""

    name = "nearswap"
    version = "nearswap@mergekit"
    access = AccessClass.ELEMENTWISE
    grain = Grain.ELEMENT
    needs_base = True
    parameters = (Parameter("t", float, low=0.0, doc="the most an element moves from the base"),)
    doc = "θ = θ₀ + clamp(δ, −t, t), of one model (huggingface.co/alchemonaut/QuartetAnemoi-70B-t0.0001)"

    def needs(self, spec: TensorSpec) -> tuple[tuple[Need, ...], ...]:
        """None; `RecipeError` for more than one model beside the base."""
        require_one_term(self.name, spec)
        return ((),) * len(spec.terms)

    def group_needs(self, spec: TensorSpec) -> tuple[GroupNeed, ...]:
        return ()

    def resolve(
        self, spec: TensorSpec, facts: Sequence[Sequence[Fact]], group_facts: Sequence[GroupFact] = ()
    ) -> NearswapCoefficients:
        """Coefficients; `RecipeError` for more than one model beside the base."""
        require_one_term(self.name, spec)
        return NearswapCoefficients(to_tile(number(spec.parameters, "t"), spec, "t"), len(spec.terms))

    def scratch_arrays(self, terms: int) -> int:
        return 1

    def combine(self, tile: Tile, coefficients: Any, out: Array) -> None:
        xp = tile.xp
        for delta in tile.deltas:
            if delta is None:
                continue
            delta(out)
            xp.clip(out, -coefficients.t, coefficients.t, out=out)
            xp.multiply(out, -1.0, out=out)
            subtract_from_base(tile, 1.0, out)
            return
        out[...] = tile.base

    def copies_unread(self, coefficients: Any) -> bool:
        return True

    def gains(self, coefficients: Any) -> tuple[float, ...]:
        return (1.0,) * int(coefficients.terms)

    def exact_gains(self, coefficients: Any) -> bool:
        return False

    def base_gain(self, coefficients: Any) -> float:
        return 1.0

    def bound(self, coefficients: Any, norms: Norms, read: Reads, sizes: Sizes | None = None) -> Norms | str:
        """`min(‖δ_b‖, t √n_b)`: no entry of the clamped delta is larger than δ's, nor than t."""
        omitted = omitted_sum(self.gains(coefficients), norms, read)
        if sizes is None:
            return omitted
        clamped: Norms = np.minimum(omitted, coefficients.t * np.sqrt(sizes))
        return clamped


OPERATORS: tuple[Operator, ...] = (Nearswap(),)
