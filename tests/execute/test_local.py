"""Running a schedule: the naive merge bit for bit, whatever the limits; failures stop it and leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mergepipe.core.extents import PAGE
from mergepipe.errors import (
    BudgetExceeded,
    MergePipeError,
    NonFiniteError,
    OutputError,
    SourceError,
    StaleIndex,
)
from mergepipe.execute import shard as shard_module
from mergepipe.execute.local import run_locally
from mergepipe.execute.memory import SlabPool
from mergepipe.execute.shard import ShardWork, execute_shard
from mergepipe.manifest.model import Receipt
from mergepipe.operators.contract import Tile
from mergepipe.operators.task_arithmetic import TaskArithmetic
from mergepipe.plan.access import AccessPlan
from mergepipe.plan.family import FamilyRules, MissingRule, VocabularyRule
from mergepipe.plan.schedule import Limits
from mergepipe.plan.select import Policy
from mergepipe.testing.checkpoints import fine_tune, typed, write_checkpoint, write_family
from mergepipe.testing.plans import Corridor, corridor
from tests.execute.naive import merged, published

pytestmark = pytest.mark.timeout(60)  # a deadlock is a failure

LITTLE = 16 << 20
LIMITS = [
    Limits(memory=LITTLE, readers=1, workers=1),
    Limits(memory=LITTLE, readers=3, workers=2),
    Limits(memory=48 << 20, readers=4, workers=3),
    Limits(memory=256 << 20, readers=2, workers=1),
]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Whatever a run ended with, its threads are gone."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def mixed(folder: Path) -> tuple[Path, list[Path]]:
    """A family of every dtype and odd shape: rows longer than a buffer, 0-d, empty, integer and boolean tensors."""
    generator = np.random.default_rng(11)

    def noise(*shape: int) -> Any:
        return generator.standard_normal(shape)

    base: dict[str, tuple[str, Any]] = {
        "model.embed_tokens.weight": ("BF16", noise(50, 30)),
        "wide": ("F64", noise(40, 33)),
        "single": ("F32", noise(3, 70_001)),
        "half": ("F16", noise(64, 31)),
        "tiny": ("F8_E4M3", noise(37, 20)),
        "tinier": ("F8_E5M2", noise(999)),
        "brain": ("BF16", noise(5, 4, 7, 9)),
        "scale": ("F32", np.array(1.5)),
        "empty": ("BF16", np.zeros((0, 8))),
        "hollow": ("F32", np.zeros((8, 0))),
        "steps": ("I64", np.arange(10)),
        "flags": ("BOOL", np.array([True, False, True])),
        "same": ("BF16", noise(100)),
    }
    write_checkpoint(folder / "base", base, {"vocab_size": 50}, shards=3)
    experts = []
    for number, codes in enumerate([{}, {"wide": "F32", "half": "BF16", "brain": "F64"}, {"single": "BF16"}]):
        tensors = {}
        for name, (code, values) in base.items():
            if code not in ("I64", "BOOL") and name != "same":
                values = values + 0.1 * np.random.default_rng(number).standard_normal(np.shape(values))
            if name == "model.embed_tokens.weight":
                values = [values[:33], values, np.concatenate([values, values])][number]
            tensors[name] = (codes.get(name, code), values)
        experts.append(write_checkpoint(folder / f"expert{number}", tensors, {"vocab_size": 50}, shards=number + 1))
    return folder / "base", experts


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """The mixed family."""
    return mixed(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Corridor:
    """Three bf16 experts of a tiny Llama, in blocks of 64 bytes."""
    family = write_family(tmp_path_factory.mktemp("small"))
    return corridor(family.base, family.experts, block_bytes=64)


def through(family: tuple[Path, list[Path]], out: str | None, block: int, **more: Any) -> Corridor:
    """The mixed family's corridor."""
    rules = FamilyRules(vocabulary=VocabularyRule.COMMON)
    return corridor(*family, out_dtype=out, rules=rules, block_bytes=block, **more)


def facts_of(receipts: tuple[Receipt, ...]) -> list[Any]:
    """What of receipts may not depend on limits: all but how many requests were made."""
    return [
        (each.file, dict(each.read_digests), dict(each.bytes_by_purpose), dict(each.expert_bytes_by_source))
        for each in receipts
    ]


# --- bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", [None, "F32", "BF16", "F64", "F16"])
@pytest.mark.parametrize("block", [100, 1 << 20])
@pytest.mark.parametrize("budget", [None, "40%"])
def test_every_dtype_and_shape_equals_the_naive_merge(
    everything: tuple[Path, list[Path]], tmp_path: Path, out: str | None, block: int, budget: str | None
) -> None:
    """Blocks of a few elements, or of more than a buffer holds; all limits write the same files and receipts."""
    way = through(everything, out, block)
    plan = way.choose(budget)
    expected = merged(plan)
    reference: list[Any] | None = None
    for number, limits in enumerate(LIMITS[:: 1 if out is None else 3]):
        folder = tmp_path / str(number)
        receipts = way.run(plan, folder, limits)
        assert published(folder) == expected
        if plan.budget.cap is None:
            reference = reference or facts_of(receipts)
            assert facts_of(receipts) == reference
        else:  # gaps are part of steps, so bytes may differ, within the cap
            reference = reference or [each[:2] for each in facts_of(receipts)]
            assert [each[:2] for each in facts_of(receipts)] == reference
            assert sum(each.bytes_by_purpose.get("expert", 0) for each in receipts) <= plan.budget.cap


def test_blocks_larger_than_a_buffer_are_taken_leaf_by_leaf(
    everything: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    """A row of 70,001 elements: little memory cuts it, and its digests still agree with the index's."""
    way = through(everything, None, 100)
    plan = way.choose(None, indexed=True)
    number = next(n for n, tensor in enumerate(plan.logical.tensors) if tensor.name == "single")
    assert plan.tensors[number].block == 70_001
    smallest = 5 * 65_536 * 8
    limits = Limits(memory=smallest + (6 << 20), readers=2, workers=1)
    (file,) = way.lay_out(plan, limits).shards
    assert file.slab_bytes // 4 < 2 * 70_001
    way.run(plan, tmp_path / "out", limits)
    assert published(tmp_path / "out") == merged(plan)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(percent=st.integers(0, 99), seed=st.integers(0, 1000), memory=st.sampled_from([LITTLE, 64 << 20]))
def test_any_subset_of_blocks_equals_the_naive_merge(
    small: Corridor, tmp_path_factory: pytest.TempPathFactory, percent: int, seed: int, memory: int
) -> None:
    """Omitted deltas count as zeros, bit for bit, and no expert byte is read beyond the cap."""
    way = replace(small, logical=replace(small.logical, seed=seed))
    plan = way.choose(f"{percent}%", Policy.RANDOM)
    folder = tmp_path_factory.mktemp("out")
    receipts = way.run(plan, folder, Limits(memory=memory, readers=2, workers=2))
    assert published(folder) == merged(plan)
    assert plan.budget.cap is not None
    assert sum(each.bytes_by_purpose.get("expert", 0) for each in receipts) <= plan.budget.cap


@pytest.mark.parametrize("merge", [{"normalize": True}, {"normalize": False}])
def test_an_average_that_does_not_keep_the_base_is_computed_where_nothing_is_read(
    everything: tuple[Path, list[Path]], tmp_path: Path, merge: dict[str, Any]
) -> None:
    """`a₀ ≠ 1`: unread blocks are the base times a₀, not the base."""
    way = through(everything, None, 100, method="linear", merge=merge, models=[{"weight": w} for w in (0.3, 0.4, 0.1)])
    plan = way.choose("20%")
    way.run(plan, tmp_path / "out")
    assert published(tmp_path / "out") == merged(plan)


def test_output_files_share_the_work(small: Corridor, tmp_path: Path) -> None:
    """Several output files hold together what one holds; their receipts sum to the one's."""
    models = small.checkpoints
    many = corridor(Path(models[0].url), [Path(each.url) for each in models[1:]], block_bytes=64, shard_bytes=700)
    plans = [way.choose("50%") for way in (small, many)]
    one, several = small.run(plans[0], tmp_path / "one"), many.run(plans[1], tmp_path / "many")
    assert len(several) > 3
    assert published(tmp_path / "many") == published(tmp_path / "one")
    assert [each.file.name for each in several] == [file.name for file in many.logical.files]
    for each in (one, several):
        assert sum(r.bytes_by_purpose["base"] for r in each) == small.checkpoints[0].payload_bytes


def test_tensors_that_no_expert_has_are_converted(tmp_path: Path) -> None:
    """Missing everywhere under the rule: the base's values, in the output's dtype."""
    base = {"a": np.linspace(-2, 2, 50, dtype=np.float32), "b": np.linspace(0, 1, 7, dtype=np.float32)}
    write_checkpoint(tmp_path / "base", typed(base, "F32"))
    write_checkpoint(tmp_path / "expert", typed({"a": base["a"] * 1.5}, "F32"))
    rules = FamilyRules(missing=MissingRule.SKIP)
    for out in (None, "BF16"):
        way = corridor(tmp_path / "base", [tmp_path / "expert"], rules=rules, out_dtype=out)
        plan = way.choose()
        way.run(plan, tmp_path / f"out{out}")
        assert published(tmp_path / f"out{out}") == merged(plan)


def test_a_merge_of_the_base_alone_is_a_copy(tmp_path: Path) -> None:
    """No expert at all: nothing is read but the base."""
    family = write_family(tmp_path, experts=1)
    way = corridor(family.base, [])
    (receipt,) = way.run(way.choose(), tmp_path / "out")
    assert published(tmp_path / "out") == published(family.base)
    assert receipt.expert_bytes_by_source == {}


# --- what a run reports -----------------------------------------------------------------------------


def test_receipts_say_what_was_read(small: Corridor, tmp_path: Path) -> None:
    """Bytes by purpose and by source, and one digest an input; a digest changes with the bytes it is of."""
    plan = small.choose()
    (receipt,) = small.run(plan, tmp_path / "out")
    payloads = [each.payload_bytes for each in small.checkpoints]
    assert receipt.bytes_by_purpose == {"base": payloads[0], "expert": sum(payloads[1:])}
    sources = [each.source for each in plan.logical.inputs[1:]]
    assert receipt.expert_bytes_by_source == dict(zip(sources, payloads[1:], strict=True))
    assert set(receipt.read_digests) == {"0", "1", "2", "3"}
    assert len(set(receipt.read_digests.values())) == 4
    assert receipt.file.size == (tmp_path / "out" / "model.safetensors").stat().st_size


def test_gaps_do_not_show_in_the_digests(small: Corridor, tmp_path: Path) -> None:
    """What is read between planned blocks is charged, but is not part of what the output depends on."""
    plan = small.choose("30%")
    tight = replace(plan, budget=replace(plan.budget, cap=plan.planned_bytes))
    wide = replace(plan, budget=replace(plan.budget, cap=plan.full_bytes))
    receipts = [small.run(each, tmp_path / str(n))[0] for n, each in enumerate((tight, wide))]
    assert receipts[0].bytes_by_purpose["expert"] < receipts[1].bytes_by_purpose["expert"]
    assert receipts[0].reads_by_purpose["expert"] > receipts[1].reads_by_purpose["expert"]
    assert receipts[0].read_digests == receipts[1].read_digests
    assert receipts[0].file == receipts[1].file


def test_finished_files_are_not_made_again(small: Corridor, tmp_path: Path) -> None:
    """A resumed run makes what is missing, records only that, and returns the receipts of all, in order."""
    models = small.checkpoints
    way = corridor(Path(models[0].url), [Path(each.url) for each in models[1:]], shard_bytes=700)
    plan = way.choose()
    limits = Limits(memory=64 << 20)
    schedule = way.lay_out(plan, limits)
    whole = way.run(plan, tmp_path / "whole", limits)
    kept = {each.file.name: each for each in whole[::2]}
    recorded: list[Receipt] = []
    told: list[int] = []
    (tmp_path / "rest").mkdir()
    receipts = run_locally(
        plan, way.operator, schedule, way.checkpoints, limits, tmp_path / "rest", kept, recorded.append, told.append
    )
    assert [each.file for each in receipts] == [each.file for each in whole]
    assert [each.file for each in recorded] == [each.file for each in whole[1::2]]
    assert {path.name for path in (tmp_path / "rest").iterdir()} == {each.file.name for each in whole[1::2]}
    assert sum(told) >= sum(each.file.size for each in whole[::2])


# --- failures ---------------------------------------------------------------------------------------


def broken(tmp_path: Path, change: dict[str, Any], code: str = "F32", **more: Any) -> Corridor:
    """Base and two experts of a tensor of 100,000 elements and a short one; `change`: model → (element, value)."""
    generator = np.random.default_rng(2)
    base = {"long": generator.standard_normal((1000, 100)).astype(np.float32), "short": np.ones(10, np.float32)}
    for number, name in enumerate(("base", "one", "two")):
        tensors = fine_tune(base, number, untouched=0.0) if number else {k: v.copy() for k, v in base.items()}
        for place, value in change.get(name, ()):
            tensors["long"].reshape(-1)[place] = value
        write_checkpoint(tmp_path / name, typed(tensors, code))
    return corridor(tmp_path / "base", [tmp_path / "one", tmp_path / "two"], **more)


def refused(way: Corridor, plan: AccessPlan, folder: Path, kind: type[MergePipeError]) -> str:
    """The message of the error that stops the run; no file may be left."""
    with pytest.raises(kind) as caught:
        way.run(plan, folder, Limits(memory=LITTLE, readers=3, workers=2))
    assert list(folder.iterdir()) == []
    return str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["base", "one", "two"])
@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "linear"])
def test_a_value_that_is_no_number_stops_the_run(tmp_path: Path, value: float, where: str, method: str) -> None:
    """Model, tensor and element are named, also where the method would have trimmed the value away."""
    models = [{"weight": 0.5, "density": 0.1}] * 2 if method == "ties" else None
    way = broken(tmp_path, {where: [(77_777, value), (90_000, value)]}, method=method, models=models)
    message = refused(way, way.choose(), tmp_path / "out", NonFiniteError)
    assert str(tmp_path / where) in message
    assert f"long holds {np.float32(value)} at element 77,777" in message


@pytest.mark.parametrize("method", ["task_arithmetic", "linear"])
def test_a_base_without_numbers_is_found_where_nothing_else_is_read(tmp_path: Path, method: str) -> None:
    """Blocks that are copied, and blocks that are the base times a₀."""
    merge = {"normalize": False} if method == "linear" else None
    way = broken(tmp_path, {"base": [(5, np.inf)]}, method=method, merge=merge)
    plan = way.choose("0%", allow_nonfinite=True)
    message = refused(way, replace(plan, allow_nonfinite=False), tmp_path / "out", NonFiniteError)
    assert message.startswith(f"{tmp_path / 'base'}: long holds inf at element 5")


@pytest.mark.parametrize(
    ("change", "where", "element"),
    [({"one": [(3, np.inf), (4, -np.inf)]}, "one", 3),
     ({"base": [(900, np.inf)], "two": [(900, np.inf)]}, "base", 900)],
)  # fmt: skip
def test_infinities_that_cancel_are_still_met(tmp_path: Path, change: dict[str, Any], where: str, element: int) -> None:
    """+∞ and −∞ in one tile, and the same infinity in base and expert."""
    way = broken(tmp_path, change)
    message = refused(way, way.choose(), tmp_path / "out", NonFiniteError)
    assert message.startswith(f"{tmp_path / where}: long holds inf at element {element}")


def test_large_finite_values_are_no_infinities(tmp_path: Path) -> None:
    """Deltas whose sum overflows a float32 are merged as they are."""
    change = {"one": [(n, 3e38) for n in range(10)], "two": [(n, 2e38) for n in range(10)]}
    way = broken(tmp_path, change, models=[{"weight": 0.1}, {"weight": 0.1}])
    plan = way.choose()
    way.run(plan, tmp_path / "out")
    assert published(tmp_path / "out") == merged(plan)


def test_allowed_values_go_through(tmp_path: Path) -> None:
    """With `--allow-nonfinite` the run goes on, and gives what the arithmetic gives, without a warning."""
    way = broken(tmp_path, {"one": [(3, np.inf), (70_000, np.nan)], "base": [(900, -np.inf)]})
    plan = replace(way.choose(), allow_nonfinite=True)
    way.run(plan, tmp_path / "out")
    long = np.frombuffer(published(tmp_path / "out")["long"], np.float32)
    assert np.flatnonzero(~np.isfinite(long)).tolist() == [3, 900, 70_000]


@pytest.mark.parametrize(
    ("stored", "out", "value"),
    [
        ("F32", "F16", 7e4),
        ("F32", "F8_E4M3", 500.0),
        ("F32", "F8_E5M2", 6.2e4),
        ("F64", "F32", 1e39),
        ("F32", "BF16", 3.4e38),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_results_the_output_cannot_hold_are_refused(
    tmp_path: Path, stored: str, out: str, value: float, sign: int
) -> None:
    """Tensor, value, element and dtype are named; allowed, they become infinite (or NaN where there is none)."""
    tensors = {"w": np.ones(100), "x": np.ones(5)}
    write_checkpoint(tmp_path / "base", typed(tensors, stored))
    tensors["w"][60] = sign * value
    write_checkpoint(tmp_path / "expert", typed(tensors, stored))
    way = corridor(tmp_path / "base", [tmp_path / "expert"], models=[{"weight": 1.0}], out_dtype=out)
    plan = way.choose()
    message = refused(way, plan, tmp_path / "out", NonFiniteError)
    assert message.startswith("w: the merged value ")
    assert f"at element 60 does not fit {out}" in message
    way.run(replace(plan, allow_nonfinite=True), tmp_path / "allowed")
    assert set(published(tmp_path / "allowed")) == {"w", "x"}


@pytest.mark.parametrize("model", ["base", "one", "two"])
def test_bytes_the_index_does_not_describe_stop_the_run(tmp_path: Path, model: str) -> None:
    """One bit changed since indexing: model and tensor are named, nothing is left."""
    way = broken(tmp_path, {}, block_bytes=4000)
    plan = way.choose("90%")
    path = tmp_path / model / "model.safetensors"
    data = bytearray(path.read_bytes())
    info = way.checkpoints[["base", "one", "two"].index(model)].tensors["short"]
    data[info.extent.start + 1] ^= 1
    path.write_bytes(data)
    message = refused(way, plan, tmp_path / "out", StaleIndex)
    assert message.startswith(f"{tmp_path / model}: short: ")


def test_a_change_in_what_is_not_read_does_not_matter(tmp_path: Path) -> None:
    """Nothing is said about blocks that the plan leaves out."""
    way = broken(tmp_path, {}, block_bytes=4000)
    plan = way.choose("50%")
    number = next(n for n, tensor in enumerate(plan.logical.tensors) if tensor.name == "long")
    bits = int.from_bytes(bytes.fromhex(plan.tensors[number].reads[0]), "little")
    unread = next(n for n in range(100) if not bits >> n & 1)
    info = way.checkpoints[1].tensors["long"]
    path = tmp_path / "one" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[info.extent.start + unread * plan.tensors[number].block * 4] ^= 1
    path.write_bytes(data)
    way.run(replace(plan, budget=replace(plan.budget, cap=plan.planned_bytes)), tmp_path / "out")
    assert published(tmp_path / "out") == merged(plan)


def test_a_read_beyond_the_allowance_is_refused(small: Corridor, tmp_path: Path) -> None:
    """Should schedule and run ever disagree, the meter has the last word."""
    plan = small.choose("50%")
    limits = Limits(memory=64 << 20)
    schedule = small.lay_out(plan, limits)
    short = replace(schedule.shards[0], allowance=schedule.shards[0].allowance - 1)
    work = ShardWork(plan, small.operator, short, small.checkpoints, limits)
    with pytest.raises(BudgetExceeded):
        execute_shard(work, tmp_path / "model.safetensors", lambda _: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["base", "two"])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.99])
def test_a_read_that_fails_in_the_middle_stops_the_run(tmp_path: Path, model: str, share: float) -> None:
    """A file cut short after it was opened: the error comes out, no thread hangs, no file is left."""
    way = broken(tmp_path, {})
    plan = way.choose()
    path = tmp_path / model / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    message = refused(way, plan, tmp_path / "out", SourceError)
    assert str(path) in message
    assert "truncated" in message


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    """Between planning and reading."""
    way = broken(tmp_path, {})
    plan = way.choose()
    (tmp_path / "one" / "model.safetensors").unlink()
    assert "one/model.safetensors: cannot be opened" in refused(way, plan, tmp_path / "out", SourceError)


class Faulty(TaskArithmetic):
    """Fails at the n-th tile."""

    def __init__(self, at: int) -> None:
        self.at, self.calls, self.lock = at, 0, threading.Lock()

    def combine(self, tile: Tile, coefficients: Any, out: Any) -> None:
        with self.lock:
            self.calls += 1
            if self.calls == self.at:
                raise ZeroDivisionError("in a tile")
        super().combine(tile, coefficients, out)


@pytest.mark.parametrize("at", [1, 2, 7])
def test_an_error_in_the_arithmetic_comes_out_as_it_is(tmp_path: Path, at: int) -> None:
    """Of whatever class, from whatever worker."""
    way = broken(tmp_path, {}, block_bytes=20_000)
    plan = way.choose()
    faulty = Corridor(way.composition, Faulty(at), way.logical, way.block_bytes)
    with pytest.raises(ZeroDivisionError, match="in a tile"):
        faulty.run(plan, tmp_path / "out", Limits(memory=LITTLE, readers=2, workers=3))
    assert list((tmp_path / "out").iterdir()) == []


def test_an_output_that_cannot_be_written_is_said(small: Corridor, tmp_path: Path) -> None:
    """The path is named; readers and workers end."""
    plan = small.choose()
    limits = Limits(memory=64 << 20)
    work = ShardWork(plan, small.operator, small.lay_out(plan, limits).shards[0], small.checkpoints, limits)
    with pytest.raises(OutputError, match="nowhere"):
        execute_shard(work, tmp_path / "nowhere" / "model.safetensors", lambda _: None)


def test_an_error_while_reporting_progress_ends_the_run(small: Corridor, tmp_path: Path) -> None:
    """As an interrupt does: it comes out of the caller's own thread, in the middle."""
    calls = []

    def interrupt(count: int) -> None:
        calls.append(count)
        if len(calls) == 3:
            raise KeyboardInterrupt

    plan = small.choose()
    limits = Limits(memory=LITTLE)
    work = ShardWork(plan, small.operator, small.lay_out(plan, limits).shards[0], small.checkpoints, limits)
    with pytest.raises(KeyboardInterrupt):
        execute_shard(work, tmp_path / "model.safetensors", interrupt)
    assert list(tmp_path.iterdir()) == []


class CountingPool(SlabPool):
    """A pool that notes how many of its slabs are out at most, and now."""

    made: list[CountingPool]

    def __init__(self, size: int, count: int) -> None:
        super().__init__(size, count)
        self.count, self.out, self.most = count, 0, 0
        self.seen: set[int] = set()
        self.made.append(self)

    def try_take(self, count: int) -> Any:
        taken = super().try_take(count)
        if taken is not None:
            self.out += count
            self.most = max(self.most, self.out)
            self.seen |= {each.ctypes.data for each in taken}
        return taken

    def give_back(self, slabs: Any) -> None:
        super().give_back(slabs)
        self.out -= len(slabs)


@pytest.mark.parametrize("limits", LIMITS)
def test_buffers_stay_within_the_schedules_number(
    everything: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """Never more slabs than planned, all given back; together they fit the memory limit."""
    CountingPool.made = []
    monkeypatch.setattr(shard_module, "SlabPool", CountingPool)
    way = through(everything, "F32", 1 << 20)
    plan = way.choose()
    schedule = way.lay_out(plan, limits)
    way.run(plan, tmp_path / "out", limits)
    (pool,) = CountingPool.made
    assert (pool.count, pool.size) == (schedule.shards[0].slabs, schedule.shards[0].slab_bytes + PAGE)
    assert 0 < pool.most <= pool.count
    assert len(pool.seen) <= pool.count
    assert pool.out == 0
    assert pool.count * pool.size <= limits.memory
