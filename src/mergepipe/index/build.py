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
from mergepipe.index.index_file import DENSITIES
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Knowledge, Pair, TrimFacts, Wanted
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
from mergepipe.index.survey import Question, Survey, answer, base_job, digest_jobs, expert_job, question_of, scan_jobs
from mergepipe.stats.contract import Fact, Need
from mergepipe.stats.magnitudes import kept_count
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter


def ensure(
    found: Survey,
    meter: Meter,
    memory: int,
    threads: int,
    progress: Progress | None = None,
    allow_reads: bool = True,
) -> Knowledge:
    """Answer every need that was surveyed and, if their blocks were, give the index of every pair.

    `memory` bounds data buffers in bytes and `threads` the workers; neither changes what is found.
    `progress` is told a stage, bytes done and bytes in all. Without a shelf nothing is kept. Raises
    `UsageError` if something is missing and reading is not allowed.
    """
    before = meter.spent().bytes[Purpose.INDEX]
    state, pairs, shelf = found, found.pairs, found.shelf
    if not allow_reads:
        state.require_known(memory, threads)
    reader = _Reader(meter, memory, threads, progress)
    built: list[int] = []
    with ExitStack() as stack:
        if state.unindexed:
            if shelf is not None:
                stack.enter_context(shelf.locked(state.unindexed))
                state = state.again()  # another run may have built them while this one waited
            if state.touched:
                state = _recheck(state, reader)
            built = list(state.missing)
        if state.missing or state.open:
            state = _learn(state, reader)
    own = [state.indices[state.first[n]] for n in range(len(pairs))] if state.blocks else []
    indices = _with_shared_base(own)
    made = {state.indices[n].path for n in built}
    return Knowledge(
        indices=indices,
        facts={each: state.facts[each] for each in state.wanted},
        index_bytes=meter.spent().bytes[Purpose.INDEX] - before,
        reused=tuple(dict.fromkeys(index.path for index in indices if index.path and index.path not in made)),
        built=tuple(dict.fromkeys(index.path for index in indices if index.path and index.path in made)),
        notes=state.notes,
    )


# --- files that were touched


def _recheck(state: Survey, reader: _Reader) -> Survey:
    """Hash the files that were touched: what is the same is used (and its versions noted), the rest is missing."""
    pairs, shelf = state.pairs, state.shelf
    jobs = digest_jobs(pairs, state.touched)
    digests = dict(zip(jobs, reader.digests(jobs, [pairs[n] for n in state.touched]), strict=True))
    indices, missing = dict(state.indices), list(state.missing)
    for number, found in state.touched.items():
        pair, index = pairs[number], found.index
        assert index is not None
        same = all(
            (not found.base_touched or np.array_equal(digests[base_job(pair, t)], index.base[t.name].digest))
            and (
                not found.expert_touched
                or np.array_equal(
                    digests[expert_job(pair, t)],
                    index.blocks[t.name].digest[: -(-t.elements // t.block)],
                )
            )
            for t in pair.tensors
        )
        if same:
            indices[number] = index if shelf is None else shelf.put(pair, index)
        else:
            missing.append(number)
    facts, open_ = answer(pairs, state.wanted, state.first, indices, set(missing), shelf)
    return replace(state, indices=indices, missing=missing, touched={}, facts=facts, open=open_)


# --- reading


def _learn(state: Survey, reader: _Reader) -> Survey:
    """Read what is missing, once, and keep it."""
    pairs, shelf = state.pairs, state.shelf
    jobs = scan_jobs(state)
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
                facts[each] = known[question_of(each.need, job.tensor.elements)]
                learnt.setdefault(number, {})[name, each.need] = facts[each]
    indices = dict(state.indices)
    for number in state.missing:
        index = _assemble(pairs[number], parts[number])
        indices[number] = index if shelf is None else shelf.put(pairs[number], index)
    if shelf is not None:
        for number, known_facts in learnt.items():
            shelf.keep_facts(pairs[number], known_facts)
    late, _ = answer(pairs, [each for each in state.wanted if each not in facts], state.first, indices, set(), None)
    return replace(state, indices=indices, facts=facts | late, open=())


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What a scan found of one tensor of a pair."""

    tensor: TensorFinds
    expert: ExpertFinds
    facts: Mapping[Question, Fact]


def _facts_by_question(expert: ExpertJob, finds: ExpertFinds) -> dict[Question, Fact]:
    known: dict[Question, Fact] = {}
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
