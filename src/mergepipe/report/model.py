"""The result object that `merge --json` and `plan --json` print and the manifest keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mergepipe.manifest.model import Receipt
from mergepipe.plan.access import AccessPlan
from mergepipe.plan.cost import base_bytes, output_bytes


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall time of each stage; None for a stage that did not run."""

    index: float | None = None
    plan: float | None = None
    execute: float | None = None
    publish: float | None = None


@dataclass(frozen=True, slots=True)
class Reads:
    """What the meters counted while executing: bytes and requests by purpose, expert bytes by source."""

    bytes: Mapping[str, int] = field(hash=False)
    requests: Mapping[str, int] = field(hash=False)
    by_source: Mapping[str, int] = field(hash=False)


def reads_of(receipts: Sequence[Receipt]) -> Reads:
    """Sum the receipts of all shards."""
    return Reads(
        _total(receipt.bytes_by_purpose for receipt in receipts),
        _total(receipt.reads_by_purpose for receipt in receipts),
        _total(receipt.expert_bytes_by_source for receipt in receipts),
    )


def plan_result(plan: AccessPlan, scheduled: int, index_bytes: int, seconds: Seconds) -> dict[str, Any]:
    """Design §7's object without what only a run knows. `scheduled` is the expert bytes to be asked for."""
    return {
        "plan_digest": plan.digest,
        "method": plan.logical.operator,
        "method_version": plan.logical.method,
        "policy": plan.policy,
        "seed": plan.logical.seed,
        "expert_bytes": {
            "full": plan.full_bytes,
            "budget": plan.full_bytes if plan.budget.cap is None else plan.budget.cap,
            "planned": scheduled,
        },
        "budget": plan.budget.text,
        "base_bytes": base_bytes(plan.logical),
        "output_bytes": output_bytes(plan.logical),
        "index_bytes": index_bytes,
        "bound": asdict(plan.bound),
        "estimate": None,
        "seconds": asdict(seconds),
        "notes": list(plan.logical.notes),
    }


def merge_result(planned: Mapping[str, Any], output: str, manifest: str, reads: Reads, peak_rss: int) -> dict[str, Any]:
    """Design §7's object: the plan's, with what the run metered."""
    expert = dict(planned["expert_bytes"])
    expert["read"] = reads.bytes.get("expert", 0)
    expert["by_source"] = dict(reads.by_source)
    return {
        "output": output,
        "manifest": manifest,
        **planned,
        "expert_bytes": expert,
        "base_bytes_read": reads.bytes.get("base", 0),
        "reads": sum(reads.requests.values()),
        "peak_rss_bytes": peak_rss,
    }


def _total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            total[key] = total.get(key, 0) + count
    return total
