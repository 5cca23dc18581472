"""Which statistic answers a need of several deltas together, and what it takes."""

from __future__ import annotations

from mergepipe.stats.contract import (
    GramNeed,
    GroupNeed,
    ImportanceNeed,
    OverlapNeed,
    VarianceMaskNeed,
    VectorGramNeed,
)
from mergepipe.stats.gram import ColumnGram, RowGram, gram_demand
from mergepipe.stats.group import Demand, Geometry, GroupStatistic
from mergepipe.stats.importance import Importance, importance_demand
from mergepipe.stats.overlap import Overlap, overlap_demand
from mergepipe.stats.variance import VarianceMask, variance_demand


def demand_of(need: GroupNeed, geometry: Geometry, memory: int) -> Demand:
    """What the statistic takes if it is given `memory` bytes; more than those if they are too few."""
    match need:
        case GramNeed() | VectorGramNeed():
            return gram_demand(need, geometry)
        case VarianceMaskNeed():
            return variance_demand(need, geometry, memory)
        case OverlapNeed():
            return overlap_demand(geometry)
        case ImportanceNeed():
            return importance_demand(need, geometry, memory)


def statistic_of(need: GroupNeed, geometry: Geometry, memory: int) -> GroupStatistic:
    """The statistic, which takes what `demand_of` says of as many bytes."""
    match need:
        case VectorGramNeed() if need.axis != -1:
            return ColumnGram(need, geometry)
        case GramNeed() | VectorGramNeed():
            return RowGram(need, geometry)
        case VarianceMaskNeed():
            return VarianceMask(need, geometry, memory)
        case OverlapNeed():
            return Overlap(need, geometry)
        case ImportanceNeed():
            return Importance(need, geometry, memory)
