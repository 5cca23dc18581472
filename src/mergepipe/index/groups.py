"""Finding or making facts of several experts together.

What is on the shelf and still describes the files is taken. What is missing is read, charged to INDEX, and kept. A
fact is the same wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from mergepipe.core.units import format_bytes
from mergepipe.errors import UsageError
from mergepipe.index.filing import locked
from mergepipe.index.group_scan import GroupFinds, GroupJob, Part, foreseen_bytes, scan_groups, scan_part_digests
from mergepipe.index.group_storage import Answer, FoundGroup, Group, Question, find_group, group_path, put_group
from mergepipe.index.model import Knowledge, Pair, PairTensor, WantedGroup
from mergepipe.index.reading import Progress, counter, open_inputs
from mergepipe.index.storage import Shelf
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter

# What tells a group from others within a run.
_Key = tuple[tuple[str, str], ...]


def gather(
    surveyed: GroupSurvey,
    meter: Meter,
    memory: int,
    threads: int,
    progress: Progress | None = None,
    allow_reads: bool = True,
) -> Knowledge:
    """Answer every need that was surveyed, as `group_facts`.

    `memory` bounds data buffers in bytes and `threads` the workers; neither changes what is found.
    `progress` is told a stage, bytes done and bytes in all. Without a shelf nothing is kept. Raises
    `UsageError` if something is missing and reading is not allowed.
    """
    before = meter.spent().bytes[Purpose.INDEX]
    state, shelf = surveyed, surveyed.shelf
    if not allow_reads:
        state.require_known(memory, threads)
    reader = _Reader(state.pairs, meter, memory, threads, progress)
    built: list[_Key] = []
    with ExitStack() as stack:
        if state.lacking:
            if shelf is not None:
                paths = [group_path(shelf.folder, state.groups[key]) for key in state.lacking]
                stack.enter_context(locked(shelf.folder, paths))
                state = state.again()  # another run may have found them while this one waited
            state = _recheck(state, reader)
            built = list(state.open)
            state = _learn(state, reader)
    paths_of = {} if shelf is None else {key: str(group_path(shelf.folder, each)) for key, each in state.groups.items()}
    return Knowledge(
        group_facts={each: state.found[key].answers[question].fact for each, (key, question) in state.asked.items()},
        index_bytes=meter.spent().bytes[Purpose.INDEX] - before,
        reused=tuple(path for key, path in paths_of.items() if key not in built),
        built=tuple(path for key, path in paths_of.items() if key in built),
        notes=tuple(each.note for each in state.found.values() if each.note),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GroupSurvey:
    """What is known of what `wanted` asks of `pairs`, and what is not, by group.

    `found` holds the answers on the shelf; of those in `doubtful` files were touched since. `open` are questions
    to be computed. `jobs` has what each question asked now reads. Nothing is on a `shelf` that is None.
    """

    pairs: Sequence[Pair]
    wanted: Sequence[WantedGroup]
    shelf: Shelf | None
    asked: Mapping[WantedGroup, tuple[_Key, Question]]
    groups: Mapping[_Key, Group]
    jobs: Mapping[tuple[_Key, Question], GroupJob]
    found: Mapping[_Key, FoundGroup]
    doubtful: Mapping[_Key, Sequence[Question]]
    open: Mapping[_Key, Sequence[Question]]

    @property
    def lacking(self) -> list[_Key]:
        return list(dict.fromkeys((*self.doubtful, *self.open)))

    @property
    def open_jobs(self) -> list[GroupJob]:
        return [self.jobs[key, question] for key, questions in self.open.items() for question in questions]

    def again(self) -> GroupSurvey:
        """The same looked up anew: another run may have put something on the shelf since."""
        return survey_groups(self.pairs, self.wanted, self.shelf)

    def cost(self, memory: int, threads: int) -> int:
        """Bytes that will be read to know the rest.

        Looks that only reading tells the need of are not in the figure, nor is the computing of facts of files that
        were touched and turn out to be changed.
        """
        digests = sum(part.bytes for part in _touched_parts(self))
        return digests + sum(foreseen_bytes(self.open_jobs, memory, threads))

    def require_known(self, memory: int, threads: int) -> None:
        """Raises `UsageError` if anything would have to be read."""
        lacking = [each for part in (self.open, self.doubtful) for questions in part.values() for each in questions]
        if lacking:
            raise UsageError(
                f"facts of several models together that no index holds are needed: {len(lacking)}, the first "
                f"{lacking[0].need} of {lacking[0].base}; {format_bytes(self.cost(memory, threads))} would have to be "
                "read (INDEX), which --no-index-reads forbids: leave it out, or run `mergepipe index` of the recipe"
            )


def survey_groups(pairs: Sequence[Pair], wanted: Sequence[WantedGroup], shelf: Shelf | None) -> GroupSurvey:
    """Look up what `wanted` needs; reads nothing but the shelf."""
    tensors = [{tensor.name: tensor for tensor in pair.tensors} for pair in pairs]
    keys: dict[tuple[int, ...], _Key] = {}
    groups: dict[_Key, Group] = {}
    asked: dict[WantedGroup, tuple[_Key, Question]] = {}
    jobs: dict[tuple[_Key, Question], GroupJob] = {}
    for each in wanted:
        members = [(pairs[number], tensors[number][each.tensor]) for number in each.pairs]
        if each.pairs not in keys:
            group = Group(members[0][0].base, tuple(pair.expert for pair, _ in members))
            keys[each.pairs] = group.identity
            groups.setdefault(group.identity, group)
        experts = tuple((tensor.expert.name, tensor.elements) for _, tensor in members)
        asked[each] = keys[each.pairs], Question(members[0][1].base.name, experts, each.need)
        jobs.setdefault(asked[each], _job(each, members))
    found = {key: FoundGroup({}) if shelf is None else find_group(shelf.folder, each) for key, each in groups.items()}
    doubtful: dict[_Key, list[Question]] = {}
    open_: dict[_Key, list[Question]] = {}
    for key, question in jobs:
        if question not in found[key].answers:
            open_.setdefault(key, []).append(question)
        elif not found[key].fresh:
            doubtful.setdefault(key, []).append(question)
    return GroupSurvey(pairs, wanted, shelf, asked, groups, jobs, found, doubtful, open_)


def _job(wanted: WantedGroup, members: Sequence[tuple[Pair, PairTensor]]) -> GroupJob:
    pair, tensor = members[0]
    return GroupJob(
        need=wanted.need,
        base=Part(pair.base.url, pair.base.ref, tensor.base, tensor.base.elements),
        experts=tuple(Part(p.expert.url, p.expert.ref, t.expert, t.elements) for p, t in members),
    )


# --- files that were touched


def _recheck(state: GroupSurvey, reader: _Reader) -> GroupSurvey:
    """Hash the tensors asked for in files that were touched: what is the same is used, the rest is to be computed."""
    if not state.doubtful:
        return state
    shelf = state.shelf
    parts = _touched_parts(state)
    digests = dict(zip(parts, reader.digests(parts), strict=True))
    found, open_ = dict(state.found), {key: list(questions) for key, questions in state.open.items()}
    for key, questions in state.doubtful.items():
        same = {}
        for question in questions:
            recorded = found[key].answers[question]
            touched = _touched(state.jobs[key, question], found[key])
            if all(digests[part] == recorded.digests[place] for place, part in touched):
                same[question] = recorded
            else:
                open_.setdefault(key, []).append(question)
        # What was not asked for is not known to be true of these files, and goes.
        found[key] = FoundGroup(same)
        if shelf is not None:
            put_group(shelf.folder, state.groups[key], same)
    return replace(state, found=found, doubtful={}, open=open_)


def _touched(job: GroupJob, found: FoundGroup) -> list[tuple[int, Part]]:
    """The parts of a job whose model was touched, with their places."""
    return [(place, part) for place, part in enumerate(job.parts) if found.touched[place]]


def _touched_parts(state: GroupSurvey) -> list[Part]:
    parts: dict[Part, None] = {}
    for key, questions in state.doubtful.items():
        for question in questions:
            parts |= {part: None for _, part in _touched(state.jobs[key, question], state.found[key])}
    return list(parts)


# --- reading


def _learn(state: GroupSurvey, reader: _Reader) -> GroupSurvey:
    """Compute what is missing, and keep it."""
    if not state.open:
        return state
    shelf = state.shelf
    finds = iter(reader.scan(state.open_jobs))
    found = dict(state.found)
    for key, questions in state.open.items():
        learnt = {question: next(finds) for question in questions}
        # With a file that was touched and from which nothing was asked, what it held goes.
        known = found[key].answers if found[key].fresh else {}
        answers = {**known, **{question: Answer.of(each.fact, each.digests) for question, each in learnt.items()}}
        found[key] = FoundGroup(answers, note=found[key].note)
        if shelf is not None:
            put_group(shelf.folder, state.groups[key], answers)
    return replace(state, found=found, open={})


class _Reader:
    """Makes the passes, each over the files of the models concerned, and tells progress."""

    def __init__(
        self, pairs: Sequence[Pair], meter: Meter, memory: int, threads: int, progress: Progress | None
    ) -> None:
        self._pairs, self._meter, self._memory, self._threads, self._progress = pairs, meter, memory, threads, progress

    def scan(self, jobs: Sequence[GroupJob]) -> list[GroupFinds]:
        """Run scan jobs."""
        total = sum(foreseen_bytes(jobs, self._memory, self._threads))
        with open_inputs(self._of([part for job in jobs for part in job.parts]), self._meter) as stores:
            return scan_groups(jobs, stores, self._memory, self._threads, counter(self._progress, "facts", total))

    def digests(self, parts: Sequence[Part]) -> list[str]:
        """Hash tensors."""
        total = sum(part.bytes for part in parts)
        with open_inputs(self._of(parts), self._meter) as stores:
            advance = counter(self._progress, "check facts", total)
            return scan_part_digests(parts, stores, self._memory, self._threads, advance)

    def _of(self, parts: Sequence[Part]) -> list[Pair]:
        """The pairs that have all models of these parts between them."""
        sources = {part.source for part in parts}
        return [pair for pair in self._pairs if sources & {pair.base.url, pair.expert.url}]
