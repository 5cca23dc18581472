"""Facts of several models together: the same bits however tensors are read, and within the memory given."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe.core.leaves import LEAF
from mergepipe.errors import MemoryLimitTooSmall
from mergepipe.index import group_scan
from mergepipe.index.groups import gather, survey_groups
from mergepipe.index.model import Pair, WantedGroup
from mergepipe.stats.contract import (
    GramNeed,
    GroupNeed,
    ImportanceNeed,
    OverlapNeed,
    VarianceMaskNeed,
    VectorGramNeed,
)
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from tests.index.pairs import pairs_of, typed, write_models

PLENTY = 1 << 30
SHAPES = {
    "scalar": (), "vector": (70_001,), "rows": (300, 257), "three": (9, 70, 11), "long": (2, 70_000), "thin": (4099, 1),
    "many": (520, 1024),
}  # fmt: skip


def family(folder: Path, codes: Sequence[str], seed: int) -> list[Pair]:
    """A base and two experts with ties and zeros among their deltas; the first expert has fewer rows of one tensor."""
    draw = np.random.default_rng(seed)
    base = {name: draw.standard_normal(shape) * 0.05 for name, shape in SHAPES.items()}
    experts = []
    for code in codes[1:]:
        moved = {n: v + draw.integers(-9, 10, np.shape(v)) * 2.0**-11 for n, v in base.items()}
        experts.append(typed(moved, code))
    experts[0]["rows"] = codes[1], experts[0]["rows"][1][:211]
    return pairs_of(write_models(folder, typed(base, codes[0]), *experts))


def every_need() -> list[WantedGroup]:
    """All kinds of needs of all tensors."""
    wanted = []
    for name, shape in SHAPES.items():
        needs: list[GroupNeed] = [GramNeed(), VarianceMaskNeed(0.3), VarianceMaskNeed(1.0), OverlapNeed(2.0**-10)]
        needs += [VectorGramNeed(axis) for axis in (-1, 0)] if len(shape) > 1 else []
        wanted += [WantedGroup((0, 1), name, need) for need in needs]
        wanted.append(WantedGroup((1,), name, ImportanceNeed(shape[-1] if shape else 1)))
    return wanted


@pytest.mark.parametrize("codes", [("BF16", "BF16", "BF16"), ("F32", "F16", "F64"), ("F64", "BF16", "F32")])
def test_threads_memory_and_tiles_do_not_show(
    tmp_path: Path, codes: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact is a function of the tensors: with few and many threads, little and much memory, short and long runs."""
    pairs, wanted = family(tmp_path, codes, 1), every_need()
    reference = repr(
        gather(survey_groups(pairs, wanted, None), Meter(), PLENTY, 1).group_facts
    )  # to the bit, and the sign of 0
    # The least memory that will do, and twice that.
    with pytest.raises(MemoryLimitTooSmall) as refused:
        gather(survey_groups(pairs, wanted, None), Meter(), 1, 1)
    least = refused.value.needed
    while True:
        try:
            survey_groups(pairs, wanted, None).cost(least, 1)
        except MemoryLimitTooSmall as error:
            least = error.needed
        else:
            break
    for memory, threads in ((PLENTY, 2), (PLENTY, 7), (least, 1), (2 * least, 5), (64 << 20, 3)):
        assert repr(gather(survey_groups(pairs, wanted, None), Meter(), memory, threads).group_facts) == reference
    for run in (1, 3 * LEAF):
        monkeypatch.setattr(group_scan, "_RUN", run)
        assert repr(gather(survey_groups(pairs, wanted, None), Meter(), PLENTY, 2).group_facts) == reference


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 40), max_size=3).map(tuple), st.integers(0, 1 << 20), st.integers(1, 3), st.integers(1, 4)
)
def test_facts_of_odd_shapes(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], seed: int, experts: int, threads: int
) -> None:
    """One element, one row, three dimensions: the same with one thread as with several, and announced to the byte."""
    draw = np.random.default_rng(seed)
    base = {name: draw.standard_normal(shape) for name in "abc"}
    moved = [{n: v + draw.integers(-3, 4, shape) / 64 for n, v in base.items()} for _ in range(experts)]
    folder = tmp_path_factory.mktemp("odd")
    pairs = pairs_of(write_models(folder, typed(base, "F32"), *(typed(each, "BF16") for each in moved)))
    together = tuple(range(experts))
    needs: list[GroupNeed] = [GramNeed(), VarianceMaskNeed(0.5), OverlapNeed(0.0)]
    needs += [VectorGramNeed(0), VectorGramNeed(-1)] if len(shape) > 1 else []
    wanted = [WantedGroup(together, name, need) for name in "abc" for need in needs]
    wanted += [WantedGroup((0,), name, ImportanceNeed(shape[-1] if shape else 1)) for name in "abc"]
    found = gather(survey_groups(pairs, wanted, None), Meter(), PLENTY, threads)
    assert found.group_facts == gather(survey_groups(pairs, wanted, None), Meter(), PLENTY, 1).group_facts
    assert list(found.group_facts) == wanted
    assert found.index_bytes == survey_groups(pairs, wanted, None).cost(PLENTY, threads)


def test_what_fits_is_read_once(tmp_path: Path) -> None:
    """Looks at tensors that are kept cost nothing; where they cannot be, the certain looks are announced."""
    pairs = family(tmp_path, ("BF16", "BF16", "BF16"), 2)
    wanted = [WantedGroup((0, 1), "many", VarianceMaskNeed(0.3))]
    once = 3 * 520 * 1024 * 2
    assert survey_groups(pairs, wanted, None).cost(PLENTY, 1) == once
    assert gather(survey_groups(pairs, wanted, None), Meter(), PLENTY, 1).index_bytes == once
    with pytest.raises(MemoryLimitTooSmall) as refused:
        gather(survey_groups(pairs, wanted, None), Meter(), 1, 1)
    least = refused.value.needed
    assert survey_groups(pairs, wanted, None).cost(least, 1) == 2 * once
    assert gather(survey_groups(pairs, wanted, None), Meter(), least, 1).index_bytes >= 2 * once


def test_too_little_memory_is_said_before_anything_is_read(tmp_path: Path) -> None:
    """What the tensor that needs most would take is named; one byte less will not do."""
    pairs, meter = family(tmp_path, ("BF16", "F32", "BF16"), 3), Meter()
    wanted = [WantedGroup((1,), "long", ImportanceNeed(70_000))]
    with pytest.raises(MemoryLimitTooSmall, match="long") as refused:
        gather(survey_groups(pairs, wanted, None), meter, 1 << 20, 2)
    with pytest.raises(MemoryLimitTooSmall):
        gather(survey_groups(pairs, wanted, None), meter, refused.value.needed - 1, 2)
    assert meter.spent().bytes[Purpose.INDEX] == 0
    assert gather(survey_groups(pairs, wanted, None), meter, refused.value.needed, 2).group_facts


@pytest.mark.parametrize(
    "need",
    [GramNeed(), VectorGramNeed(-1), VectorGramNeed(0), VarianceMaskNeed(0.3), OverlapNeed(0.0), ImportanceNeed(1024)],
    ids=str,
)
def test_memory_stays_within_its_limit(tmp_path: Path, need: GroupNeed) -> None:
    """Buffers of all workers together, but for the lists that the facts are."""
    draw = np.random.default_rng(4)
    base = {f"t{n}": draw.standard_normal((1100, 1024)) for n in range(3)}
    moved = [{n: v + draw.standard_t(3, v.shape) * 1e-3 for n, v in base.items()} for _ in range(2)]
    pairs = pairs_of(write_models(tmp_path, typed(base, "BF16"), *(typed(each, "BF16") for each in moved)))
    together = (0,) if isinstance(need, ImportanceNeed) else (0, 1)
    wanted = [WantedGroup(together, name, need) for name in base]
    gather(survey_groups(pairs, wanted, None), Meter(), PLENTY, 1)  # what is loaded once and for all
    for memory, threads in ((24 << 20, 1), (60 << 20, 3)):
        tracemalloc.start()
        try:
            found: Any = gather(survey_groups(pairs, wanted, None), Meter(), memory, threads)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        lists = sum(len(v) for fact in found.group_facts.values() for v in fact.values() if isinstance(v, list))
        assert peak <= memory + 40 * lists + (1 << 20)
