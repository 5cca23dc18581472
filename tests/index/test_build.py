from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe.errors import SourceError, UsageError
from mergepipe.index.build import ensure
from mergepipe.index.index_file import DENSITIES
from mergepipe.index.model import Knowledge, Pair, Wanted
from mergepipe.index.storage import Shelf
from mergepipe.index.survey import survey
from mergepipe.stats.contract import BandL1Need, MaskedL1Need, Need, RankedMaskL1Need, RankNeed, TrimmedL1Need, TrimNeed
from mergepipe.stats.magnitudes import kept_count
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.operators import fact_of
from tests.index.pairs import (
    check_against_naive,
    moved,
    naive_delta,
    pairs_of,
    same_index,
    small_family,
    typed,
    weights,
    write_models,
)

MEMORY = 256 << 20
MASK = MaskedL1Need(7, 0.5)
# One of each kind that `up`, of 960 elements in rows of 24, can be asked for.
EVERY: tuple[Need, ...] = (
    TrimNeed(0.5), TrimNeed(0.505), RankNeed(7), MASK, RankedMaskL1Need(8, 0.5, 0.3, 24), TrimmedL1Need(0.5),
    TrimmedL1Need(0.0001), BandL1Need(7, 400), BandL1Need(0, 960),
)  # fmt: skip


def learn(
    pairs: Sequence[Pair], wanted: Sequence[Wanted] = (), blocks: bool = True, shelf: Shelf | None = None, **more: Any
) -> Knowledge:
    """`ensure` with a fresh meter; what was announced is what is read."""
    meter = Meter()
    cost = survey(pairs, wanted, blocks, shelf).cost(MEMORY, 2)
    found = ensure(survey(pairs, wanted, blocks, shelf), meter, MEMORY, 2, **more)
    assert found.index_bytes == meter.spent().bytes[Purpose.INDEX] == cost
    assert sum(meter.spent().bytes.values()) == found.index_bytes
    return found


def payload(*checkpoints: Any) -> int:
    """Bytes of all tensors."""
    return sum(each.payload_bytes for each in checkpoints)


@pytest.mark.parametrize("code", ["BF16", "F16", "F32", "F64", "F8_E4M3"])
def test_block_facts_are_those_of_whole_tensors(tmp_path: Path, code: str) -> None:
    """Norms, maxima, counts and inner products of every block, in every dtype, 0-d tensors included."""
    pairs = pairs_of(small_family(tmp_path, code=code))
    for pair, index in zip(pairs, learn(pairs).indices, strict=True):
        check_against_naive(index, pair)


def test_odd_inputs(tmp_path: Path) -> None:
    """Non-finite values on either side, other dtypes, fewer rows, equal and missing tensors."""
    base = weights(1)
    base["up"][3, 5], base["norm"][0] = np.nan, -np.inf
    one = typed(moved(base, 2), "F32")
    one["down"][1][0, :3] = np.inf, np.nan, -np.inf
    one["embed"] = "BF16", one["embed"][1][:17]
    two = typed(base, "BF16") | {"down": ("F64", moved(base, 3)["down"])}
    del two["scale"]
    pairs = pairs_of(write_models(tmp_path, typed(base, "BF16"), one, two), 300)
    found = learn(pairs)
    for pair, index in zip(pairs, found.indices, strict=True):
        check_against_naive(index, pair)
    assert "scale" not in found.indices[1].blocks
    assert not found.indices[1].blocks["embed"].nonzero.any()
    assert found.indices[0].blocks["up"].nonfinite.sum() == 1


def test_cuts_on_the_grid(tmp_path: Path) -> None:
    """For each tensor thresholds and cuts at 0.01 … 0.99 are those of a stable sort."""
    pairs = pairs_of(small_family(tmp_path))
    for pair, index in zip(pairs, learn(pairs).indices, strict=True):
        for tensor in pair.tensors:
            sizes = np.abs(naive_delta(pair, tensor))
            order = np.argsort(-sizes, kind="stable")
            cuts = [int(order[kept_count(density, sizes.size) - 1]) for density in DENSITIES]
            assert index.trims[tensor.base.name].cut.tolist() == cuts
            assert index.trims[tensor.base.name].threshold.tolist() == sizes[cuts].tolist()


def test_memory_and_threads_do_not_show(tmp_path: Path) -> None:
    """The index is a function of the models and the grid."""
    pairs = pairs_of(small_family(tmp_path, experts=3))
    reference = learn(pairs).indices
    for memory, threads in ((16 << 20, 1), (1 << 30, 4)):
        found = ensure(survey(pairs, [], True, None), Meter(), memory, threads).indices
        assert all(same_index(a, b) for a, b in zip(found, reference, strict=True))


def test_an_index_is_built_once(tmp_path: Path) -> None:
    """Each byte of the family is read once; afterwards nothing is, and the file is named as reused."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    first = learn(pairs, shelf=shelf)
    assert first.index_bytes == payload(pairs[0].base, *(pair.expert for pair in pairs))
    assert (first.built, first.reused) == (tuple(str(shelf.path(pair)) for pair in pairs), ())
    second = learn(pairs, shelf=shelf)
    assert (second.index_bytes, second.built, second.reused) == (0, (), first.built)
    assert all(same_index(a, b) for a, b in zip(first.indices, second.indices, strict=True))


def test_a_new_expert_joins(tmp_path: Path) -> None:
    """With one index there, the base and the new expert are read, not the known one."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    learn(pairs[:1], shelf=shelf)
    found = learn(pairs, shelf=shelf)
    assert found.index_bytes == payload(pairs[1].base, pairs[1].expert)
    assert (found.reused, found.built) == tuple((str(shelf.path(pair)),) for pair in pairs)


def test_facts_are_the_same_from_everywhere(tmp_path: Path) -> None:
    """From an index, from a pass of their own, from the pass that builds the index, from the shelf: equal bits."""
    pairs = pairs_of(small_family(tmp_path))
    wanted = [
        Wanted(number, name, need)
        for number in range(2)
        for name in ("up", "embed", "scale")
        for need in (TrimNeed(0.2), TrimNeed(0.123), MASK, RankNeed(1))
    ]
    alone = learn(pairs, wanted, blocks=False).facts
    assert list(alone) == wanted
    shelf = Shelf(tmp_path / "shelf")
    assert learn(pairs, wanted, shelf=shelf).facts == alone
    kept = learn(pairs, wanted, shelf=shelf)
    assert (kept.facts, kept.index_bytes) == (alone, 0)
    learn(pairs, shelf=Shelf(tmp_path / "other"))
    assert learn(pairs, wanted, shelf=Shelf(tmp_path / "other")).facts == alone


def test_facts_alone_read_the_tensors_concerned(tmp_path: Path) -> None:
    """No index is built for them; they are kept, and cost nothing the second time."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    wanted = [Wanted(0, "up", TrimNeed(0.5)), Wanted(0, "up", MASK), Wanted(1, "up", MASK)]
    first = learn(pairs, wanted, blocks=False, shelf=shelf)
    assert first.indices == []
    assert first.index_bytes == 3 * len(pairs[0].base.tensors["up"].extent)
    assert not shelf.path(pairs[0]).exists()
    second = learn(pairs, wanted, blocks=False, shelf=shelf)
    assert (second.facts, second.index_bytes) == (first.facts, 0)


def test_an_index_answers_its_grid_only(tmp_path: Path) -> None:
    """0.07 and 0.29 are on the grid, 0.1 + 0.2 and 0.005 are not; those cost the tensor concerned."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    learn(pairs, shelf=shelf)
    on = [Wanted(1, "up", TrimNeed(density)) for density in (0.07, 0.29, 0.01, 0.99)]
    found = learn(pairs, on, blocks=False, shelf=shelf)
    assert found.index_bytes == 0
    for each in on:
        assert isinstance(each.need, TrimNeed)
        sizes = np.abs(naive_delta(pairs[1], pairs[1].tensors[1]))
        rank = kept_count(each.need.density, sizes.size)
        assert found.facts[each]["threshold"] == np.sort(sizes)[-rank]
    off = [Wanted(1, "up", TrimNeed(density)) for density in (0.1 + 0.2, 0.005)]
    assert learn(pairs, off, shelf=shelf).index_bytes == 2 * len(pairs[0].base.tensors["up"].extent)


def test_touched_files_are_hashed_and_the_index_reused(tmp_path: Path) -> None:
    """Copied models cost one pass of hashing over what was touched; then nothing again."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    first = learn(pairs_of(models), shelf=shelf)
    file = models[2] / "model.safetensors"
    shutil.copy(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    pairs = pairs_of(models)
    found = learn(pairs, shelf=shelf)
    assert found.index_bytes == payload(pairs[1].expert)
    assert (found.built, found.reused) == ((), first.built)
    assert all(same_index(a, b) for a, b in zip(found.indices, first.indices, strict=True))
    assert learn(pairs, shelf=shelf).index_bytes == 0
    os.utime(models[0] / "model.safetensors", ns=(5, 5))
    assert learn(pairs_of(models), shelf=shelf).index_bytes == payload(pairs[0].base)
    assert learn(pairs_of(models), shelf=shelf).index_bytes == 0


def test_a_changed_model_is_indexed_anew(tmp_path: Path) -> None:
    """One flipped bit, size and time of modification as before: the index is rebuilt, never used."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    first = learn(pairs_of(models), [Wanted(0, "up", MASK)], shelf=shelf)
    before = learn(pairs_of(models)).indices[0]
    file = models[1] / "model.safetensors"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=times)
    pairs = pairs_of(models)
    meter = Meter()
    found = ensure(survey(pairs, [Wanted(0, "up", MASK)], True, shelf), meter, MEMORY, 2)
    assert found.built == first.built[:1]
    assert found.reused == first.built[1:]
    assert found.index_bytes == payload(pairs[0].expert) + payload(pairs[0].base, pairs[0].expert)
    assert not same_index(found.indices[0], before)
    check_against_naive(found.indices[0], pairs[0])
    assert learn(pairs, [Wanted(0, "up", MASK)], shelf=shelf).index_bytes == 0


def test_a_damaged_index_is_rebuilt_and_said(tmp_path: Path) -> None:
    """A truncated file on the shelf costs a rebuild, with a note that names it."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    first = learn(pairs, shelf=shelf)
    path = shelf.path(pairs[0])
    path.write_bytes(path.read_bytes()[:-1])
    found = learn(pairs, shelf=shelf)
    assert found.built == (str(path),)
    assert len(found.notes) == 1
    assert str(path) in found.notes[0]
    assert all(same_index(a, b) for a, b in zip(found.indices, first.indices, strict=True))


def test_reading_can_be_forbidden(tmp_path: Path) -> None:
    """What is missing is then an error that names it and the option, and nothing is read; what is there serves."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    wanted = [Wanted(0, "up", MASK)]
    for blocks, named in ((True, pairs[1].expert.ref), (False, "of up")):
        meter = Meter()
        with pytest.raises(UsageError, match="--no-index-reads") as caught:
            ensure(survey(pairs, wanted, blocks, shelf), meter, MEMORY, 1, None, False)
        assert named in str(caught.value)
        assert meter.spent().bytes[Purpose.INDEX] == 0
    learn(pairs, wanted, shelf=shelf)
    assert learn(pairs, wanted, shelf=shelf, allow_reads=False).index_bytes == 0


@pytest.mark.parametrize("blocks", [True, False])
def test_every_need_is_answered_and_kept(tmp_path: Path, blocks: bool) -> None:
    """By the plain formulas; afterwards nothing is read, and alone each has the same bits."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    wanted = [Wanted(number, "up", need) for number in range(2) for need in EVERY]
    found = learn(pairs, wanted, blocks, shelf)
    for each in wanted:
        pair = pairs[each.pair]
        tensor = next(t for t in pair.tensors if t.name == "up")
        assert found.facts[each] == pytest.approx(fact_of(each.need, naive_delta(pair, tensor)), rel=1e-12)
        assert learn(pairs, [each], blocks=False).facts[each] == found.facts[each]
    again = learn(pairs, wanted, blocks, shelf, allow_reads=False)
    assert again.index_bytes == 0
    assert again.facts == found.facts


def test_a_model_named_twice_is_indexed_once(tmp_path: Path) -> None:
    """Both pairs get the one index; facts are answered for each."""
    models = small_family(tmp_path, experts=1)
    pairs, shelf = pairs_of([*models, models[1]]), Shelf(tmp_path / "shelf")
    wanted = [Wanted(number, "up", need) for number in range(2) for need in (MASK, TrimNeed(0.5), TrimNeed(0.505))]
    found = learn(pairs, wanted, shelf=shelf)
    assert found.index_bytes == payload(pairs[0].base, pairs[0].expert)
    assert len(found.indices) == 2
    assert len(found.built) == 1
    assert [found.facts[each] for each in wanted[:3]] == [found.facts[each] for each in wanted[3:]]


def test_indices_of_one_base_share_its_facts(tmp_path: Path) -> None:
    """Facts of the base are held once, however many experts there are."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    for _ in range(2):
        one, two = learn(pairs, shelf=shelf).indices
        assert one.base is two.base


def test_without_a_shelf_nothing_is_kept(tmp_path: Path) -> None:
    """The index is whole, has no path, and is read for again the next time."""
    pairs = pairs_of(small_family(tmp_path))
    first, second = learn(pairs), learn(pairs)
    assert first.index_bytes == second.index_bytes > 0
    assert (first.built, first.reused, first.indices[0].path) == ((), (), "")


def test_progress_counts_to_the_announced_total(tmp_path: Path) -> None:
    """Bytes done grow to the total, which is what was announced."""
    pairs = pairs_of(small_family(tmp_path))
    told: list[tuple[str, int, int]] = []
    found = learn(pairs, progress=lambda stage, done, total: told.append((stage, done, total)))
    assert {(stage, total) for stage, _, total in told} == {("index", found.index_bytes)}
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1][1] == found.index_bytes


def test_a_model_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """The run stops and names the file; no index of it is kept."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    file = models[1] / "model.safetensors"
    pairs = pairs_of(models)
    with pytest.raises(SourceError, match=r"expert1/model\.safetensors: changed while"):
        ensure(survey(pairs, [], True, shelf), Meter(), MEMORY, 1, lambda *_: os.utime(file, ns=(1, 1)))
    assert not shelf.path(pairs[0]).exists()


def test_a_second_run_waits_and_finds_the_index(tmp_path: Path) -> None:
    """Two runs at once read the family once between them."""
    models, shelf = small_family(tmp_path), Shelf(tmp_path / "shelf")
    found: list[Knowledge] = []
    started = threading.Barrier(2)

    def run() -> None:
        pairs = pairs_of(models)
        started.wait()
        found.append(ensure(survey(pairs, [], True, shelf), Meter(), MEMORY, 1))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.index_bytes for each in found) == [0, max(each.index_bytes for each in found)]
    assert sorted((len(each.built), len(each.reused)) for each in found) == [(0, 2), (2, 0)]


def test_the_leavings_of_a_killed_run_do_no_harm(tmp_path: Path) -> None:
    """A half-written file beside the index is overwritten by the next run and gone."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    shelf.folder.mkdir()
    (shelf.folder / f".{shelf.path(pairs[0]).name}.part").write_bytes(b"half")
    assert len(learn(pairs, shelf=shelf).built) == 2
    assert not list(shelf.folder.glob(".*.part"))


def test_nothing_wanted(tmp_path: Path) -> None:
    """Nothing is read and no folder is made."""
    pairs, shelf = pairs_of(small_family(tmp_path)), Shelf(tmp_path / "shelf")
    found = learn(pairs, [], blocks=False, shelf=shelf)
    assert (found.indices, found.facts, found.index_bytes) == ([], {}, 0)
    assert not shelf.folder.exists()
