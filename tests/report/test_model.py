"""The result object: the keys that programs rely on, and figures that are the plan's and the meters'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mergepipe.core.digest import canonical_json
from mergepipe.manifest.model import FileRecord, Receipt
from mergepipe.plan.cost import base_bytes, output_bytes
from mergepipe.report.model import Reads, Seconds, merge_result, plan_result, reads_of
from mergepipe.testing.checkpoints import write_family
from mergepipe.testing.plans import Corridor, corridor


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Corridor:
    """Two experts, float32 output."""
    family = write_family(tmp_path_factory.mktemp("family"), experts=2)
    return corridor(family.base, family.experts, out_dtype="F32", seed=5, block_bytes=64)


def receipt(name: str, base: int, expert: int, sources: dict[str, int]) -> Receipt:
    """A receipt with these figures."""
    record = FileRecord(name, 1, "sha256:0")
    return Receipt(record, {}, {"base": base, "expert": expert}, {"base": 2, "expert": 3}, sources)


def test_receipts_are_summed() -> None:
    """By purpose and by source, over shards that need not have the same sources."""
    total = reads_of(
        [
            receipt("a", 10, 20, {"0:a": 15, "1:b": 5}),
            receipt("b", 1, 2, {"1:b": 2}),
        ]
    )
    assert total == Reads({"base": 11, "expert": 22}, {"base": 4, "expert": 6}, {"0:a": 15, "1:b": 7})
    assert reads_of([]) == Reads({}, {}, {})


def test_a_plans_result_has_designs_keys_and_the_plans_figures(way: Corridor) -> None:
    """Bytes, bound with its mark, digest, method with its variant; what did not happen is null."""
    plan = way.choose("30%")
    result = plan_result(plan, 777, 55, Seconds(index=1.5, plan=0.25))
    assert result["plan_digest"] == plan.digest
    assert result["method"] == "task_arithmetic"
    assert result["method_version"] == "task_arithmetic@mergekit"
    assert (result["policy"], result["seed"], result["budget"]) == ("norm", 5, "30%")
    expert = result["expert_bytes"]
    assert expert == {"full": plan.full_bytes, "budget": plan.budget.cap, "planned": 777}
    assert result["base_bytes"] == base_bytes(plan.logical)
    assert result["output_bytes"] == output_bytes(plan.logical)
    assert output_bytes(plan.logical) == 2 * base_bytes(plan.logical)
    assert result["index_bytes"] == 55
    assert result["bound"]["kind"] == "certified"
    assert result["bound"]["l2"] == plan.bound.l2
    assert set(result["bound"]) == {
        "kind", "l2", "rounding_l2", "relative_to_update", "relative_to_weights", "reason",
    }  # fmt: skip
    assert result["seconds"] == {"index": 1.5, "plan": 0.25, "execute": None, "publish": None}


def test_without_a_cap_the_budget_is_the_full_read(way: Corridor) -> None:
    """So that programs need not know what null would mean."""
    plan = way.choose()
    expert = plan_result(plan, plan.full_bytes, 0, Seconds())["expert_bytes"]
    assert expert == {"full": plan.full_bytes, "budget": plan.full_bytes, "planned": plan.full_bytes}


def test_a_merges_result_is_the_plans_with_what_was_metered(way: Corridor, tmp_path: Path) -> None:
    """`read` and `by_source` are the meters'; the plan's object is left as it was; all of it is JSON."""
    plan = way.choose("30%")
    planned = plan_result(plan, 777, 0, Seconds())
    before = canonical_json(planned)
    reads = reads_of(way.run(plan, tmp_path))
    result = merge_result(planned, "/out", "/out/mergepipe_manifest.json", reads, 123)
    assert result["expert_bytes"]["read"] == reads.bytes["expert"]
    assert sum(result["expert_bytes"]["by_source"].values()) == reads.bytes["expert"]
    assert result["base_bytes_read"] == base_bytes(plan.logical)
    assert result["reads"] == sum(reads.requests.values())
    assert (result["output"], result["manifest"]) == ("/out", "/out/mergepipe_manifest.json")
    assert result["peak_rss_bytes"] == 123
    assert planned.keys() <= result.keys()
    assert canonical_json(planned) == before
    assert json.loads(json.dumps(result)) == result


def test_a_merge_that_read_nothing_says_zero(way: Corridor) -> None:
    """A purpose that no shard had is zero, not missing."""
    result = merge_result(plan_result(way.choose("0%"), 0, 0, Seconds()), "o", "m", reads_of([]), 1)
    assert (result["expert_bytes"]["read"], result["base_bytes_read"], result["reads"]) == (0, 0, 0)
