"""What is known of pairs before anything is read: found on the shelf, or still to be read, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mergepipe.core.units import format_bytes
from mergepipe.errors import UsageError
from mergepipe.index.index_file import DENSITIES
from mergepipe.index.model import DeltaIndex, Pair, PairTensor, Wanted
from mergepipe.index.scan import DigestJob, ExpertJob, TensorJob, foreseen_bytes
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

# What a scan is asked of one expert tensor: a rank of |δ| (its cut), or sums.
Question = int | MaskedL1Need | RankedMaskL1Need | BandL1Need


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What is known of the `pairs` that `wanted` and, with `blocks`, their indices ask for, and what is not.

    Pairs are named by the first of those that are the same: `first[n]` is that pair for pair n. `missing` have no
    usable index, `touched` have one whose files were touched since; both are empty where no block facts are wanted.
    `open` are needs to be computed. Nothing is on a `shelf` that is None.
    """

    pairs: Sequence[Pair]
    wanted: Sequence[Wanted]
    blocks: bool
    shelf: Shelf | None
    first: Sequence[int]
    indices: Mapping[int, DeltaIndex]
    missing: Sequence[int]
    touched: Mapping[int, Found]
    facts: Mapping[Wanted, Fact]
    open: Sequence[Wanted]
    notes: tuple[str, ...]

    @property
    def unindexed(self) -> list[Pair]:
        """The pairs without an index that can be used as it is."""
        return [self.pairs[n] for n in (*self.missing, *self.touched)]

    def again(self) -> Survey:
        """The same looked up anew: another run may have put something on the shelf since."""
        return survey(self.pairs, self.wanted, self.blocks, self.shelf)

    def cost(self, memory: int, threads: int) -> int:
        """Bytes that will be read to know the rest.

        Cuts in tensors too large for `memory` take further looks at parts of them, which are not in the
        figure; nor is the building of an index whose files were touched and turn out to be changed.
        """
        digests = sum(job.bytes for job in digest_jobs(self.pairs, self.touched))
        return digests + sum(foreseen_bytes(job, memory, threads) for job, _ in scan_jobs(self))

    def require_known(self, memory: int, threads: int) -> None:
        """Raises `UsageError` if anything would have to be read."""
        lacking = [pair.expert.ref for pair in self.unindexed]
        if not lacking and not self.open:
            return
        what = f"no usable index of {', '.join(lacking)}" if lacking else ""
        if self.open:
            one = self.open[0]
            facts = f"facts that no index holds are needed: {len(self.open)}, the first {one.need} of {one.tensor}"
            what = f"{what}; {facts}" if what else facts
        raise UsageError(
            f"{what}; {format_bytes(self.cost(memory, threads))} would have to be read for this (INDEX), which "
            "--no-index-reads forbids: leave it out, or run `mergepipe index` of the recipe"
        )


def survey(pairs: Sequence[Pair], wanted: Sequence[Wanted], blocks: bool, shelf: Shelf | None) -> Survey:
    """Look up what `wanted` and, with `blocks`, the index of every pair need; reads nothing but the shelf."""
    identities: dict[object, int] = {}
    first = [identities.setdefault((p.base.url, p.expert.url, p.tensors), n) for n, p in enumerate(pairs)]
    found = {n: Found() if shelf is None else shelf.find(pairs[n]) for n in sorted(set(first))}
    indices = {n: each.index for n, each in found.items() if each.fresh and each.index is not None}
    touched = {n: each for n, each in found.items() if blocks and n not in indices and each.index is not None}
    missing = [n for n in found if blocks and n not in indices and n not in touched]
    facts, open_ = answer(pairs, wanted, first, indices, {*missing, *touched}, shelf)
    notes = tuple(each.note for each in found.values() if each.note)
    return Survey(pairs, wanted, blocks, shelf, first, indices, missing, touched, facts, open_, notes)


def answer(
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


# --- what will be read


def digest_jobs(pairs: Sequence[Pair], touched: Mapping[int, Found]) -> list[DigestJob]:
    """What must be hashed to know whether indices whose files were touched still describe them."""
    jobs: dict[DigestJob, None] = {}
    for number, found in touched.items():
        pair = pairs[number]
        for tensor in pair.tensors:
            if found.base_touched:
                jobs[base_job(pair, tensor)] = None
            if found.expert_touched:
                jobs[expert_job(pair, tensor)] = None
    return list(jobs)


def base_job(pair: Pair, tensor: PairTensor) -> DigestJob:
    """The hashing of a base tensor."""
    return DigestJob(pair.base.url, tensor.base, tensor.base.elements, tensor.block)


def expert_job(pair: Pair, tensor: PairTensor) -> DigestJob:
    """The hashing of what an expert has of a tensor."""
    return DigestJob(pair.expert.url, tensor.expert, tensor.elements, tensor.block)


def scan_jobs(state: Survey) -> list[tuple[TensorJob, list[tuple[int, str]]]]:
    """One job per base tensor and grid, with the pair's number and the tensor's name of each of its experts."""
    pairs = state.pairs
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
    questions = dict.fromkeys(question_of(need, total) for need in needs)
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


def question_of(need: Need, total: int) -> Question:
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
