from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mergepipe.index.scan as scan_module
from mergepipe.core.leaves import LEAF, block_digest, leaf_digests
from mergepipe.errors import MemoryLimitTooSmall, SourceError
from mergepipe.index.model import Pair
from mergepipe.index.scan import DigestJob, ExpertJob, TensorFinds, TensorJob, foreseen_bytes, scan, scan_digests
from mergepipe.stats.banded import ranks_of
from mergepipe.stats.contract import BandL1Need, MaskedL1Need, Need, RankedMaskL1Need
from mergepipe.stats.magnitudes import kept_count
from mergepipe.store.contract import Access, ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store
from mergepipe.testing.operators import fact_of
from tests.index.pairs import naive_delta, pairs_of, write_models

PLENTY = 1 << 30
ROWS, ROW = 1100, 250
MASKS = (MaskedL1Need(99, 0.4),)
# Rows that end within leaves, and one that is longer than a leaf.
RANKED = (RankedMaskL1Need(5, 0.4, 0.2, ROW), RankedMaskL1Need(6, 0.7, 0.1, ROWS * ROW))
BANDS = (BandL1Need(0, 30_000), BandL1Need(700, ROWS * ROW - 20_000), BandL1Need(0, ROWS * ROW))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A matrix of 275,000 elements: bf16, of which experts are bf16, float32, float64, and short of rows."""
    draw = np.random.default_rng(1)
    base = 0.02 * draw.standard_normal((ROWS, ROW))
    experts = [base + 1e-3 * draw.standard_t(3, base.shape) for _ in range(4)]
    return write_models(
        tmp_path_factory.mktemp("scan"),
        {"w": ("BF16", base)},
        *({"w": (code, values)} for code, values in zip(("BF16", "F32", "F64"), experts, strict=False)),
        {"w": ("BF16", experts[3][:700])},
    )


def job_of(pairs: Sequence[Pair], blocks: bool = True, densities: Sequence[float] = (0.1, 0.5)) -> TensorJob:
    """Everything of the only tensor."""
    first = pairs[0].tensors[0]
    ranks = tuple(kept_count(density, first.base.elements) for density in densities)
    experts = tuple(ExpertJob(p.expert.url, t.expert, t.elements, ranks, MASKS) for p in pairs for t in p.tensors)
    return TensorJob(pairs[0].base.url, first.base, first.block, blocks, experts)


def with_sums(job: TensorJob) -> TensorJob:
    """The same, and sums of all kinds."""
    more = tuple(rank for band in BANDS for rank in ranks_of(band, job.tensor.elements))
    experts = (replace(e, ranks=tuple({*e.ranks, *more}), ranked=RANKED, bands=BANDS) for e in job.experts)
    return replace(job, experts=tuple(experts))


class Bench:
    """Runs jobs on the pairs' files and counts."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.meter = Meter()
        self.told = 0
        self._urls = {c.url for pair in pairs for c in (pair.base, pair.expert)}
        self._lock = threading.Lock()

    def stores(self) -> dict[str, ByteStore]:
        """One store a model."""
        return {url: open_store(url, self.meter, Purpose.INDEX, url, Access.SEQUENTIAL) for url in self._urls}

    def run(self, jobs: Sequence[TensorJob], memory: int = PLENTY, threads: int = 1) -> list[TensorFinds]:
        """One pass."""
        stores = self.stores()
        try:
            return scan(jobs, stores, memory, threads, self.advance)
        finally:
            for store in stores.values():
                store.close()

    def advance(self, count: int) -> None:
        """Progress."""
        with self._lock:
            self.told += count

    @property
    def spent(self) -> int:
        """Bytes read."""
        return self.meter.spent().bytes[Purpose.INDEX]


def flat(finds: Sequence[TensorFinds]) -> list[Any]:
    """All that was found, comparable bit by bit."""
    found: list[Any] = []
    for each in finds:
        groups = [each.base, *(expert.blocks for expert in each.experts)]
        found += [[getattr(g, name).tobytes() for name in g.__slots__] for g in groups if g is not None]
        found += [
            (e.cuts, e.masked, e.ranked, e.banded, None if e.sketch is None else e.sketch.tobytes())
            for e in each.experts
        ]
    return found


@pytest.mark.parametrize("block_bytes", [5000, 200_000, 1 << 20])
def test_memory_threads_and_company_do_not_show(models: list[Path], block_bytes: int) -> None:
    """The least memory or plenty, one thread or three, experts alone or together: the same bits."""
    pairs = pairs_of(models, block_bytes)
    reference = Bench(pairs).run([job_of(pairs)])
    for memory, threads in ((16 << 20, 1), (13 << 20, 1), (PLENTY, 3), (40 << 20, 3)):
        assert flat(Bench(pairs).run([job_of(pairs)], memory, threads)) == flat(reference)
    alone = [Bench(pairs).run([job_of([pair])], 16 << 20)[0].experts[0] for pair in pairs]
    assert flat([TensorFinds(reference[0].base, tuple(alone))]) == flat(reference)


@pytest.mark.parametrize("block_bytes", [5000, 1 << 20])
def test_sums_do_not_show_how_they_were_made(models: list[Path], block_bytes: int) -> None:
    """Whole tensors kept or read twice, in groups or together, on one thread or three: the same bits."""
    pairs = pairs_of(models, block_bytes)
    job = with_sums(job_of(pairs))
    reference = Bench(pairs).run([job])
    with pytest.raises(MemoryLimitTooSmall) as caught:
        Bench(pairs).run([job], 1 << 20)
    least = caught.value.needed
    for memory, threads in ((least, 1), (least + (4 << 20), 2), (4 * least, 3)):
        assert flat(Bench(pairs).run([job], memory, threads)) == flat(reference)
    alone = [Bench(pairs).run([with_sums(job_of([pair]))])[0].experts[0] for pair in pairs]
    assert flat([TensorFinds(reference[0].base, tuple(alone))]) == flat(reference)


@pytest.mark.parametrize("block_bytes", [5000, 1 << 20])
def test_runs_of_leaves_do_not_show(
    tmp_path: Path, models: list[Path], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled or not, with what is not finite in base or expert, and where an expert ends early: the same bits."""
    draw = np.random.default_rng(5)
    base = 0.02 * draw.standard_normal((ROWS, ROW))
    experts = [base + 1e-3 * draw.standard_t(3, base.shape) for _ in range(3)]
    base[3, 4], experts[1][800, 9], experts[1][0, 0] = np.inf, np.nan, -np.inf
    dense = base + draw.standard_normal(base.shape)
    values = ({"w": ("BF16", each)} for each in (base, *experts[:2], experts[2][:700], dense))
    pairs = pairs_of(write_models(tmp_path, *values), block_bytes)
    job = replace(job_of(pairs), experts=tuple(replace(e, masks=()) for e in job_of(pairs).experts))
    reference = flat(Bench(pairs).run([job]))
    monkeypatch.setattr(scan_module, "_WORTH_COMPILING", 0)
    for memory, threads in ((PLENTY, 1), (13 << 20, 1), (15 << 20, 1), (PLENTY, 3)):
        assert flat(Bench(pairs).run([job], memory, threads)) == reference
    others = pairs_of(models, block_bytes)
    compiled = flat(Bench(others).run([with_sums(job_of(others))]))
    monkeypatch.undo()
    assert flat(Bench(others).run([with_sums(job_of(others))])) == compiled


@pytest.mark.parametrize("blocks", [True, False])
def test_sums_are_those_of_the_whole_delta(models: list[Path], blocks: bool) -> None:
    """Of every dtype, with zeros where an expert has no rows, as the plain formulas give them."""
    pairs = pairs_of(models)
    found = Bench(pairs).run([with_sums(job_of(pairs, blocks))])[0]
    for pair, expert in zip(pairs, found.experts, strict=True):
        delta = naive_delta(pair, pair.tensors[0])
        needs: tuple[Need, ...] = (*RANKED, *BANDS)
        for need, fact in zip(needs, (*expert.ranked, *expert.banded), strict=True):
            assert fact == pytest.approx(fact_of(need, delta), rel=1e-12)


def test_looks_that_are_certain_are_foreseen(models: list[Path]) -> None:
    """Where tensors cannot be kept, sums between cuts take a second look: announced, told and metered."""
    pairs = pairs_of(models)
    job = job_of(pairs, blocks=False, densities=())
    bands = (BandL1Need(0, 20_000),)
    experts = tuple(replace(e, masks=(), ranks=(20_000,), bands=bands) for e in job.experts)
    job = replace(job, experts=experts)
    once, bench = foreseen_bytes(job, PLENTY, 1), Bench(pairs)
    bench.run([job])
    assert bench.spent == bench.told == once
    memory = 14 << 20
    foreseen, bench = foreseen_bytes(job, memory, 1), Bench(pairs)
    bench.run([job], memory)
    assert once < 2 * once <= foreseen == bench.told <= bench.spent


def test_a_long_row_takes_its_memory_and_is_refused_before_reading(models: list[Path]) -> None:
    """Ranking needs whole rows: what a row takes is counted, and the message names the tensor."""
    pairs = pairs_of(models)
    needed = []
    for need in RANKED:
        job = job_of(pairs)
        job = replace(job, experts=tuple(replace(e, ranked=(need,)) for e in job.experts))
        bench = Bench(pairs)
        with pytest.raises(MemoryLimitTooSmall, match="reading w ") as caught:
            bench.run([job], 1 << 20)
        assert bench.spent == 0
        needed.append(caught.value.needed)
    assert needed[1] - needed[0] > 8 * (ROWS * ROW - LEAF)


def test_facts_of_whole_tensors_know_no_grid(models: list[Path]) -> None:
    """Cuts and masked sums are the same for every block size, and without block facts."""
    reference = Bench(pairs_of(models)).run([job_of(pairs_of(models), blocks=False)])[0]
    assert reference.base is None
    for block_bytes in (64, 700, 150_000):
        pairs = pairs_of(models, block_bytes)
        found = Bench(pairs).run([job_of(pairs)])[0]
        for mine, theirs in zip(found.experts, reference.experts, strict=True):
            assert (mine.cuts, mine.masked) == (theirs.cuts, theirs.masked)
            assert theirs.blocks is None


def test_cuts_are_those_of_the_whole_delta(models: list[Path]) -> None:
    """Of every dtype, and with zeros where an expert has no rows."""
    pairs = pairs_of(models)
    found = Bench(pairs).run([job_of(pairs)])[0]
    for pair, expert in zip(pairs, found.experts, strict=True):
        sizes = np.abs(naive_delta(pair, pair.tensors[0]))
        order = np.argsort(~sizes.view(f"u{sizes.itemsize}"), kind="stable")
        for density, cut in zip((0.1, 0.5), expert.cuts, strict=True):
            place = int(order[kept_count(density, sizes.size) - 1])
            assert (cut.threshold, cut.cut) == (float(sizes[place]), place)


def test_each_byte_is_read_once_where_memory_allows(models: list[Path]) -> None:
    """Base and experts once, second looks from memory; the figure announced before is the one metered."""
    pairs = pairs_of(models)
    job, bench = job_of(pairs), Bench(pairs)
    bench.run([job], threads=2)
    payload = sum(len(pair.expert.tensors["w"].extent) for pair in pairs) + len(pairs[0].base.tensors["w"].extent)
    assert bench.spent == bench.told == payload == foreseen_bytes(job, PLENTY, 2)


def test_with_less_memory_the_base_is_read_again(models: list[Path]) -> None:
    """Once for each group of experts that fits; the figure announced covers the first look."""
    pairs = pairs_of(models)
    job, bench = job_of(pairs), Bench(pairs)
    bench.run([job], 13 << 20)
    base = len(pairs[0].base.tensors["w"].extent)
    experts = sum(len(pair.expert.tensors["w"].extent) for pair in pairs)
    assert foreseen_bytes(job, 13 << 20, 1) == bench.told == 4 * base + experts
    assert bench.spent > bench.told


def test_only_what_the_experts_cover_is_read_for_facts(models: list[Path]) -> None:
    """Without block facts the base is read as far as the experts go."""
    pairs = pairs_of(models)[3:]
    bench = Bench(pairs)
    bench.run([job_of(pairs, blocks=False)])
    assert bench.spent == 2 * 2 * 700 * ROW


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Buffers stay within the limit for tensors far larger than it, however many experts there are."""
    draw = np.random.default_rng(3)
    base = 0.02 * draw.standard_normal((2600, 1000), np.float32)
    experts = [base + 1e-3 * draw.standard_normal(base.shape, np.float32) for _ in range(4)]
    code = "F32"
    models = write_models(tmp_path, {"w": (code, base)}, *({"w": (code, expert)} for expert in experts))
    pairs = pairs_of(models, 1 << 20)
    ranked = (RankedMaskL1Need(1, 0.5, 0.1, 1000), RankedMaskL1Need(1, 0.5, 0.1, 130_000))
    job = job_of(pairs)
    all_sums = (replace(e, ranked=ranked, bands=(BandL1Need(0, e.ranks[0]),)) for e in job.experts)
    job = replace(job, experts=tuple(all_sums))
    memory = 38 << 20
    assert 4 * base.nbytes > memory
    bench = Bench(pairs)
    del base, experts
    tracemalloc.start()
    try:
        bench.run([job, job], memory, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < memory


def test_too_little_memory_is_said_before_reading(models: list[Path]) -> None:
    """The error names what it takes; that much is then enough."""
    pairs = pairs_of(models)
    bench = Bench(pairs)
    with pytest.raises(MemoryLimitTooSmall) as caught:
        bench.run([job_of(pairs)], 1 << 20)
    assert bench.spent == 0
    bench.run([job_of(pairs)], caught.value.needed)


def test_a_failure_ends_the_pass(models: list[Path], tmp_path: Path) -> None:
    """A file that ends early is a typed error that names it, from whichever thread."""
    pairs = pairs_of(models)
    good = job_of(pairs)
    broken = pairs[0].expert.tensors["w"]
    short = tmp_path / "short"
    short.mkdir()
    (short / broken.extent.key).write_bytes(b"only this")
    store = open_store(str(short), Meter(), Purpose.INDEX, "short")
    bad = TensorJob(good.source, good.tensor, good.block, True, (ExpertJob("short", broken, broken.elements),))
    bench = Bench(pairs)
    stores = {**bench.stores(), "short": store}
    try:
        with pytest.raises(SourceError, match="truncated"):
            scan([good, bad, good, good], stores, PLENTY, 2, bench.advance)
    finally:
        for each in stores.values():
            each.close()


def test_digests_are_those_of_a_full_scan(models: list[Path]) -> None:
    """Hashing alone finds the block digests that the index holds."""
    pairs = pairs_of(models, 3000)
    bench = Bench(pairs)
    found = bench.run([job_of(pairs)])[0]
    jobs = [DigestJob(pairs[0].base.url, pairs[0].tensors[0].base, ROWS * ROW, pairs[0].tensors[0].block)]
    jobs += [DigestJob(p.expert.url, t.expert, t.elements, t.block) for p in pairs for t in p.tensors]
    stores = bench.stores()
    try:
        digests = scan_digests(jobs, stores, 2, bench.advance)
    finally:
        for store in stores.values():
            store.close()
    assert found.base is not None
    assert digests[0].tobytes() == found.base.digest.tobytes()
    for mine, expert in zip(digests[1:], found.experts, strict=True):
        assert expert.blocks is not None
        assert (mine == expert.blocks.digest[: mine.size]).all()
        assert not expert.blocks.digest[mine.size :].any()


def test_a_block_of_several_leaves(models: list[Path]) -> None:
    """One block over more than four leaves has the digest that execution computes of the same bytes."""
    pairs = pairs_of(models, 1 << 20)
    tensor = pairs[0].tensors[0]
    assert tensor.blocks == 1
    assert tensor.elements > 4 * LEAF
    extent = tensor.base.extent
    raw = np.fromfile(models[0] / extent.key, np.uint8)[extent.start : extent.stop]
    found = Bench(pairs).run([job_of(pairs)])[0]
    assert found.base is not None
    assert found.base.digest.tolist() == [block_digest(leaf_digests(raw, 2))]
