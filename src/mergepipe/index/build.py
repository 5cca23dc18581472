"""Finding or making what a merge must know of its experts: the index of each pair, and facts of whole tensors.

What is on the shelf and still describes the files is taken. What is missing is read in one pass over the
tensors concerned, charged to INDEX, and kept. A fact is the same wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mergepipe.core.digest import ChainDigest
from mergepipe.core.units import format_bytes
from mergepipe.errors import UsageError
from mergepipe.index.index_file import DENSITIES
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Knowledge, Pair, PairTensor, TrimFacts, Wanted
from mergepipe.index.reading import Progress, counter, open_inputs
from mergepipe.index.scan import (
    DigestJob,
    ExpertFinds,
    ExpertJob,
    TensorFinds,
    TensorJob,
    foreseen_bytes,
    scan,
    scan_digests,
)
from mergepipe.index.storage import Found, Shelf
from mergepipe.stats.banded import ranks_of
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
from mergepipe.stats.magnitudes import kept_count
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter

# What a scan is asked of one expert tensor: a rank of |δ| (its cut), or sums.
_Question = int | MaskedL1Need | RankedMaskL1Need | BandL1Need


def ensure(
    pairs: Sequence[Pair],
    wanted: Sequence[Wanted],
    blocks: bool,
    shelf: Shelf | None,
    meter: Meter,
    memory: int,
    threads: int,
    progress: Progress | None = None,
    allow_reads: bool = True,
) -> Knowledge:
    """Answer every need in `wanted` and, with `blocks`, give the index of every pair.

    `memory` bounds data buffers in bytes and `threads` the workers; neither changes what is found.
    `progress` is told a stage, bytes done and bytes in all. Without `shelf` nothing is kept. Raises
    `UsageError` if something is missing and reading is not allowed.
    """
    before = meter.spent().bytes[Purpose.INDEX]
    state = _survey(pairs, wanted, blocks, shelf)
    if not allow_reads:
        _refuse(pairs, state, memory, threads)
    reader = _Reader(meter, memory, threads, progress)
    built: list[int] = []
    with ExitStack() as stack:
        if state.missing or state.touched:
            if shelf is not None:
                stack.enter_context(shelf.locked([pairs[n] for n in (*state.missing, *state.touched)]))
                # Another run may have built them while this one waited.
                state = _survey(pairs, wanted, blocks, shelf)
            if state.touched:
                state = _recheck(pairs, wanted, state, reader, shelf)
            built = list(state.missing)
        if state.missing or state.open:
            state = _learn(pairs, wanted, state, reader, shelf)
    own = [state.indices[state.first[n]] for n in range(len(pairs))] if blocks else []
    indices = _with_shared_base(own)
    made = {state.indices[n].path for n in built}
    return Knowledge(
        indices=indices,
        facts={each: state.facts[each] for each in wanted},
        index_bytes=meter.spent().bytes[Purpose.INDEX] - before,
        reused=tuple(dict.fromkeys(index.path for index in indices if index.path and index.path not in made)),
        built=tuple(dict.fromkeys(index.path for index in indices if index.path and index.path in made)),
        notes=state.notes,
    )


def cost_to_ensure(
    pairs: Sequence[Pair], wanted: Sequence[Wanted], blocks: bool, shelf: Shelf | None, memory: int, threads: int
) -> int:
    """Bytes `ensure` would read; reads nothing but the shelf.

    Cuts in tensors too large for `memory` take further looks at parts of them, which are not in the
    figure; nor is the building of an index whose files were touched and turn out to be changed.
    """
    return _cost(pairs, _survey(pairs, wanted, blocks, shelf), memory, threads)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What is known and what is not. Pairs are named by the first of those that are the same.

    `first[n]` is that pair for pair n. `missing` have no usable index, `touched` have one whose files
    were touched since; both are empty where no block facts are wanted. `open` are needs to be computed.
    """

    first: Sequence[int]
    indices: Mapping[int, DeltaIndex]
    missing: Sequence[int]
    touched: Mapping[int, Found]
    facts: Mapping[Wanted, Fact]
    open: Sequence[Wanted]
    notes: tuple[str, ...]


def _survey(pairs: Sequence[Pair], wanted: Sequence[Wanted], blocks: bool, shelf: Shelf | None) -> _Survey:
    identities: dict[object, int] = {}
    first = [identities.setdefault((p.base.url, p.expert.url, p.tensors), n) for n, p in enumerate(pairs)]
    found = {n: Found() if shelf is None else shelf.find(pairs[n]) for n in sorted(set(first))}
    indices = {n: each.index for n, each in found.items() if each.fresh and each.index is not None}
    touched = {n: each for n, each in found.items() if blocks and n not in indices and each.index is not None}
    missing = [n for n in found if blocks and n not in indices and n not in touched]
    facts, open_ = _answer(pairs, wanted, first, indices, {*missing, *touched}, shelf)
    notes = tuple(each.note for each in found.values() if each.note)
    return _Survey(first, indices, missing, touched, facts, open_, notes)


def _answer(
    pairs: Sequence[Pair],
    wanted: Sequence[Wanted],
    first: Sequence[int],
    indices: Mapping[int, DeltaIndex],
    to_come: set[int],
    shelf: Shelf | None,
) -> tuple[dict[Wanted, Fact], list[Wanted]]:
    """Needs answered by indices or kept facts, and those that are not, nor will be by the indices `to_come`."""
    facts: dict[Wanted, Fact] = {}
    open_: list[Wanted] = []
    kept: dict[int, Mapping[tuple[str, Need], Fact]] = {}
    for each in wanted:
        number = first[each.pair]
        row = _grid_row(each.need)
        if row is not None and number in indices:
            facts[each] = _grid_fact(indices[number], each.tensor, row)
            continue
        if row is not None and number in to_come:
            continue
        if number not in kept:
            kept[number] = {} if shelf is None else shelf.facts(pairs[number])
        if (each.tensor, each.need) in kept[number]:
            facts[each] = kept[number][each.tensor, each.need]
        else:
            open_.append(each)
    return facts, open_


def _grid_row(need: Need) -> int | None:
    """The row of the index's density grid that answers a need."""
    if not isinstance(need, TrimNeed):
        return None
    number = round(need.density * 100)
    return number - 1 if 1 <= number <= len(DENSITIES) and number / 100 == need.density else None


def _grid_fact(index: DeltaIndex, tensor: str, row: int) -> Fact:
    trims = index.trims[tensor]
    return {"threshold": float(trims.threshold[row]), "cut": int(trims.cut[row])}


def _cost(pairs: Sequence[Pair], state: _Survey, memory: int, threads: int) -> int:
    digests = sum(job.bytes for job in _digest_jobs(pairs, state.touched))
    return digests + sum(foreseen_bytes(job, memory, threads) for job, _ in _jobs(pairs, state))


def _refuse(pairs: Sequence[Pair], state: _Survey, memory: int, threads: int) -> None:
    lacking = [pairs[n].expert.ref for n in (*state.missing, *state.touched)]
    if not lacking and not state.open:
        return
    what = f"no usable index of {', '.join(lacking)}" if lacking else ""
    if state.open:
        one = state.open[0]
        facts = f"facts that no index holds are needed: {len(state.open)}, the first {one.need} of {one.tensor}"
        what = f"{what}; {facts}" if what else facts
    raise UsageError(
        f"{what}; {format_bytes(_cost(pairs, state, memory, threads))} would have to be read for this (INDEX), which "
        "--no-index-reads forbids: leave it out, or run `mergepipe index` of the recipe"
    )


# --- files that were touched


def _recheck(
    pairs: Sequence[Pair], wanted: Sequence[Wanted], state: _Survey, reader: _Reader, shelf: Shelf | None
) -> _Survey:
    """Hash the files that were touched: what is the same is used (and its versions noted), the rest is missing."""
    jobs = _digest_jobs(pairs, state.touched)
    digests = dict(zip(jobs, reader.digests(jobs, [pairs[n] for n in state.touched]), strict=True))
    indices, missing = dict(state.indices), list(state.missing)
    for number, found in state.touched.items():
        pair, index = pairs[number], found.index
        assert index is not None
        same = all(
            (not found.base_touched or np.array_equal(digests[_base_job(pair, t)], index.base[t.name].digest))
            and (
                not found.expert_touched
                or np.array_equal(
                    digests[_expert_job(pair, t)],
                    index.blocks[t.name].digest[: -(-t.elements // t.block)],
                )
            )
            for t in pair.tensors
        )
        if same:
            indices[number] = index if shelf is None else shelf.put(pair, index)
        else:
            missing.append(number)
    facts, open_ = _answer(pairs, wanted, state.first, indices, set(missing), shelf)
    return replace(state, indices=indices, missing=missing, touched={}, facts=facts, open=open_)


def _digest_jobs(pairs: Sequence[Pair], touched: Mapping[int, Found]) -> list[DigestJob]:
    jobs: dict[DigestJob, None] = {}
    for number, found in touched.items():
        pair = pairs[number]
        for tensor in pair.tensors:
            if found.base_touched:
                jobs[_base_job(pair, tensor)] = None
            if found.expert_touched:
                jobs[_expert_job(pair, tensor)] = None
    return list(jobs)


def _base_job(pair: Pair, tensor: PairTensor) -> DigestJob:
    return DigestJob(pair.base.url, tensor.base, tensor.base.elements, tensor.block)


def _expert_job(pair: Pair, tensor: PairTensor) -> DigestJob:
    return DigestJob(pair.expert.url, tensor.expert, tensor.elements, tensor.block)


# --- reading


def _learn(
    pairs: Sequence[Pair], wanted: Sequence[Wanted], state: _Survey, reader: _Reader, shelf: Shelf | None
) -> _Survey:
    """Read what is missing, once, and keep it."""
    jobs = _jobs(pairs, state)
    involved = sorted({number for _, places in jobs for number, _ in places})
    finds = reader.scan([job for job, _ in jobs], [pairs[n] for n in involved])
    parts: dict[int, dict[str, _Part]] = {n: {} for n in state.missing}
    learnt: dict[int, dict[tuple[str, Need], Fact]] = {}
    facts = dict(state.facts)
    asked: dict[tuple[int, str], list[Wanted]] = {}
    for each in state.open:
        asked.setdefault((state.first[each.pair], each.tensor), []).append(each)
    for (job, places), found in zip(jobs, finds, strict=True):
        for (number, name), expert, mine in zip(places, job.experts, found.experts, strict=True):
            known = _facts_by_question(expert, mine)
            if job.blocks:
                parts[number][name] = _Part(found, mine, known)
            for each in asked.get((number, name), ()):
                facts[each] = known[_question(each.need, job.tensor.elements)]
                learnt.setdefault(number, {})[name, each.need] = facts[each]
    indices = dict(state.indices)
    for number in state.missing:
        index = _assemble(pairs[number], parts[number])
        indices[number] = index if shelf is None else shelf.put(pairs[number], index)
    if shelf is not None:
        for number, known_facts in learnt.items():
            shelf.keep_facts(pairs[number], known_facts)
    late, _ = _answer(pairs, [each for each in wanted if each not in facts], state.first, indices, set(), None)
    return replace(state, indices=indices, facts=facts | late, open=())


def _jobs(pairs: Sequence[Pair], state: _Survey) -> list[tuple[TensorJob, list[tuple[int, str]]]]:
    """One job per base tensor and grid, with the pair's number and the tensor's name of each of its experts."""
    asked: dict[tuple[int, str], list[Need]] = {}
    for each in state.open:
        asked.setdefault((state.first[each.pair], each.tensor), []).append(each.need)
    experts: dict[tuple[bool, str, str, int], list[tuple[int, PairTensor, ExpertJob]]] = {}
    for number in sorted({*state.missing, *(number for number, _ in asked)}):
        pair, whole = pairs[number], number in state.missing
        for tensor in pair.tensors:
            needs = asked.get((number, tensor.name), [])
            if whole or needs:
                key = whole, pair.base.url, tensor.base.name, tensor.block
                experts.setdefault(key, []).append((number, tensor, _expert_scan(pair, tensor, needs, whole)))
    return [
        (
            TensorJob(url, members[0][1].base, block, whole, tuple(expert for _, _, expert in members)),
            [(number, tensor.name) for number, tensor, _ in members],
        )
        for (whole, url, _, block), members in experts.items()
    ]


def _expert_scan(pair: Pair, tensor: PairTensor, needs: Sequence[Need], grid: bool) -> ExpertJob:
    total = tensor.base.elements
    questions = dict.fromkeys(_question(need, total) for need in needs)
    bands = tuple(question for question in questions if isinstance(question, BandL1Need))
    ranks = [kept_count(density, total) for density in DENSITIES] if grid else []
    ranks += [question for question in questions if isinstance(question, int)]
    ranks += [rank for band in bands for rank in ranks_of(band, total)]
    return ExpertJob(
        source=pair.expert.url,
        tensor=tensor.expert,
        elements=tensor.elements,
        ranks=tuple(dict.fromkeys(ranks)),
        masks=tuple(question for question in questions if isinstance(question, MaskedL1Need)),
        ranked=tuple(question for question in questions if isinstance(question, RankedMaskL1Need)),
        bands=bands,
    )


def _question(need: Need, total: int) -> _Question:
    """What a scan is asked for a need of a tensor of `total` elements."""
    match need:
        case TrimNeed(density):
            return kept_count(density, total)
        case RankNeed(count):
            return count
        case TrimmedL1Need(density):
            return BandL1Need(0, kept_count(density, total))
        case MaskedL1Need() | RankedMaskL1Need() | BandL1Need():
            return need


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What a scan found of one tensor of a pair."""

    tensor: TensorFinds
    expert: ExpertFinds
    facts: Mapping[_Question, Fact]


def _facts_by_question(expert: ExpertJob, finds: ExpertFinds) -> dict[_Question, Fact]:
    known: dict[_Question, Fact] = {}
    known |= {rank: cut.fact for rank, cut in zip(expert.ranks, finds.cuts, strict=True)}
    known |= dict(zip(expert.masks, finds.masked, strict=True))
    known |= dict(zip(expert.ranked, finds.ranked, strict=True))
    known |= dict(zip(expert.bands, finds.banded, strict=True))
    return known


def _assemble(pair: Pair, parts: Mapping[str, _Part]) -> DeltaIndex:
    """The index of a pair from what was found of each of its tensors."""
    blocks: dict[str, BlockFacts] = {}
    base: dict[str, BaseFacts] = {}
    trims: dict[str, TrimFacts] = {}
    sketches: dict[str, NDArray[np.float32]] = {}
    for tensor in pair.tensors:
        name, part = tensor.name, parts[tensor.name]
        assert part.tensor.base is not None
        assert part.expert.blocks is not None
        assert part.expert.sketch is not None
        base[name], blocks[name], sketches[name] = part.tensor.base, part.expert.blocks, part.expert.sketch
        cuts = [part.facts[kept_count(density, tensor.base.elements)] for density in DENSITIES]
        trims[name] = TrimFacts(
            np.array([cut["threshold"] for cut in cuts], np.float64), np.array([cut["cut"] for cut in cuts], np.int64)
        )
    return DeltaIndex(
        blocks=blocks,
        base=base,
        content_digest=_content_digest({name: each.digest for name, each in blocks.items()}),
        base_content_digest=_content_digest({name: each.digest for name, each in base.items()}),
        path="",
        trims=trims,
        sketches=sketches,
    )


def _content_digest(digests: Mapping[str, NDArray[np.uint64]]) -> str:
    """One digest over the block digests of all tensors, in the pair's order."""
    chain = ChainDigest()
    for name, each in digests.items():
        chain.label(name)
        chain.feed(each.astype("<u8").tobytes())
    return chain.text()


def _with_shared_base(indices: Sequence[DeltaIndex]) -> list[DeltaIndex]:
    """The same indices, in which equal facts of the base are held once."""
    base: dict[str, Mapping[str, BaseFacts]] = {}
    return [replace(index, base=base.setdefault(index.base_content_digest, index.base)) for index in indices]


class _Reader:
    """Makes the passes, each over the files of the pairs concerned, and tells progress."""

    def __init__(self, meter: Meter, memory: int, threads: int, progress: Progress | None) -> None:
        self._meter, self._memory, self._threads, self._progress = meter, memory, threads, progress

    def scan(self, jobs: Sequence[TensorJob], pairs: Sequence[Pair]) -> list[TensorFinds]:
        """Run scan jobs on the files of `pairs`."""
        total = sum(foreseen_bytes(job, self._memory, self._threads) for job in jobs)
        with open_inputs(pairs, self._meter) as stores:
            return scan(jobs, stores, self._memory, self._threads, counter(self._progress, "index", total))

    def digests(self, jobs: Sequence[DigestJob], pairs: Sequence[Pair]) -> list[NDArray[np.uint64]]:
        """Hash the blocks of tensors in the files of `pairs`."""
        total = sum(job.bytes for job in jobs)
        with open_inputs(pairs, self._meter) as stores:
            return scan_digests(jobs, stores, self._threads, counter(self._progress, "check index", total))
