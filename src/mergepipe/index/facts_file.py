"""The file of further facts of a pair, as JSON: facts of whole deltas that its index does not hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import msgspec

from mergepipe.core.digest import digest_of
from mergepipe.index.filing import InputState
from mergepipe.stats.contract import (
    BandL1Need,
    Fact,
    MaskedL1Need,
    Need,
    RankedMaskL1Need,
    RankNeed,
    TrimmedL1Need,
    TrimNeed,
)

VERSION: Final = 1
_FORMAT: Final = "mergepipe-facts"
_NEEDS: Final[Mapping[str, type[Any]]] = {
    each.__name__: each
    for each in (TrimNeed, MaskedL1Need, RankNeed, RankedMaskL1Need, TrimmedL1Need, BandL1Need)
}  # fmt: skip
_KEY: Final = "key"

# By base tensor and need.
Facts = Mapping[tuple[str, Need], Fact]


@dataclass(frozen=True, slots=True)
class StoredFact:
    """One fact of one tensor. `need` is the class name, `parameters` its fields, keys of masks in hexadecimal."""

    tensor: str
    need: str
    parameters: dict[str, float | int | str] = field(hash=False)
    fact: dict[str, float | int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class FactsFile:
    """What the file holds. `digest` is over all the rest."""

    format: str
    version: int
    base: InputState
    expert: InputState
    facts: tuple[StoredFact, ...]
    digest: str = ""


def encode_facts(base: InputState, expert: InputState, facts: Facts) -> bytes:
    """The file's content. Facts that are not finite are left out: JSON has no infinity."""
    stored = [_stored(tensor, need, fact) for (tensor, need), fact in facts.items()]
    stored = [each for each in stored if all(math.isfinite(value) for value in each.fact.values())]
    stored.sort(key=lambda each: (each.tensor, each.need, sorted(each.parameters.items())))
    body = FactsFile(_FORMAT, VERSION, base, expert, tuple(stored))
    return msgspec.json.encode(replace(body, digest=digest_of(body)))


def decode_facts(content: bytes, base: InputState, expert: InputState) -> Facts:
    """The facts in a file's content; none if it is damaged, or of other states of the models."""
    try:
        found = msgspec.json.decode(content, type=FactsFile)
    except msgspec.DecodeError:
        return {}
    same = all(
        (mine.identity, mine.files) == (theirs.identity, theirs.files)
        for mine, theirs in ((base, found.base), (expert, found.expert))
    )
    usable = (found.format, found.version) == (_FORMAT, VERSION)
    if not same or not usable or found.digest != digest_of(replace(found, digest="")):
        return {}
    return {(each.tensor, _need(each)): each.fact for each in found.facts}


def _stored(tensor: str, need: Need, fact: Fact) -> StoredFact:
    parameters = {each.name: getattr(need, each.name) for each in fields(need)}
    if _KEY in parameters:
        # 128 bits, more than JSON readers hold in an integer.
        parameters[_KEY] = f"{parameters[_KEY]:032x}"
    return StoredFact(tensor, type(need).__name__, parameters, dict(fact))


def _need(stored: StoredFact) -> Need:
    parameters: dict[str, Any] = dict(stored.parameters)
    if _KEY in parameters:
        parameters[_KEY] = int(parameters[_KEY], 16)
    need: Need = _NEEDS[stored.need](**parameters)
    return need
