"""Results as lines for people: budget, planned, read and bound side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mergepipe.core.units import format_bytes
from mergepipe.manifest.model import Manifest
from mergepipe.plan.compose import Composition


def result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """A merge's or plan's result object as text."""
    expert = result["expert_bytes"]
    full = expert["full"]
    if "output" in result:
        yield f"merged     {result['output']}"
    yield f"method     {result['method_version']}, seed {result['seed']}, policy {result['policy']}"
    yield f"full read  {_bytes(full)} of expert weights"
    yield f"budget     {_share(expert['budget'], full)}"
    yield f"planned    {_share(expert['planned'], full)}"
    if "read" in expert:
        yield f"read       {_share(expert['read'], full)} in {result['reads']:,} requests"
        for source, count in sorted(expert["by_source"].items()):
            yield f"             {_bytes(count)} from {source}"
    yield f"base       {_bytes(result['base_bytes'])}, index {_bytes(result['index_bytes'])}"
    yield f"bound      {bound_line(result['bound'])}"
    seconds = ", ".join(f"{name} {value:.2f} s" for name, value in result["seconds"].items() if value is not None)
    yield f"time       {seconds}"
    yield f"plan       {result['plan_digest']}"


def bound_line(bound: Mapping[str, Any]) -> str:
    """A bound as one line; never a number without its mark."""
    if bound["kind"] == "none":
        return f"none: {bound['reason']}"
    if bound["l2"] == 0 and bound["rounding_l2"] == 0:
        return f"{bound['kind']}: equal to the full-read merge, bit for bit"
    line = f"{bound['kind']}: ‖θ − θ_full‖₂ ≤ {bound['l2']:.6g} (rounding adds at most {bound['rounding_l2']:.3g})"
    if bound["relative_to_weights"] is not None:
        line += f", {100 * bound['relative_to_weights']:.3g} % of ‖θ₀‖"
    if bound["relative_to_update"] is not None:
        line += f", {100 * bound['relative_to_update']:.3g} % of the full update"
    return line


def check_lines(composition: Composition) -> Iterator[str]:
    """What `check` says."""
    merged = sum(bool(tensor.terms) for tensor in composition.tensors)
    for number, model in enumerate(composition.models):
        role = "expert" if number else "base"
        yield f"{role:10} {model.ref}: {len(model.tensors)} tensors, {_bytes(model.payload_bytes)}"
    yield f"aligned    {merged} tensors to merge, {len(composition.tensors) - merged} taken from one model"
    for finding in composition.findings:
        yield str(finding)
    yield "not mergeable as it is" if composition.errors else "ready to merge"


def check_object(composition: Composition) -> dict[str, Any]:
    """What `check --json` prints."""
    base, *experts = composition.models
    return {
        "ok": not composition.errors,
        "base": base.ref,
        "experts": [expert.ref for expert in experts],
        "tensors": len(composition.tensors),
        "merged": sum(bool(tensor.terms) for tensor in composition.tensors),
        "findings": [
            {"severity": finding.severity.value, "model": finding.model, "message": finding.message}
            for finding in composition.findings
        ],
    }


def manifest_lines(manifest: Manifest) -> Iterator[str]:
    """A manifest's inputs and outputs, for `explain OUT`."""
    for each in manifest.identity.inputs:
        role = "base" if each.position < 0 else f"expert {each.position}"
        yield f"{role:10} {each.ref}  read {each.read_digest}"
    for record in manifest.identity.files:
        yield f"file       {record.name}  {record.size:,} bytes  {record.sha256}"


def sweep_lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line a budget."""
    yield f"{'budget':>12} {'expert bytes':>14} {'share':>7}  bound on ‖θ − θ_full‖₂"
    for result in results:
        expert = result["expert_bytes"]
        share = 100 * expert["planned"] / expert["full"] if expert["full"] else 0.0
        line = (
            f"{result['budget']:>12} {format_bytes(expert['planned']):>14} {share:6.2f}%  {bound_line(result['bound'])}"
        )
        error = result.get("true_error")
        yield line if error is None else f"{line}; measured {error:.6g}"


def _bytes(count: int) -> str:
    return f"{format_bytes(count)} ({count:,} bytes)" if count >= 1024 else f"{count} bytes"


def _share(count: int, full: int) -> str:
    return f"{_bytes(count)}, {100 * count / full:.2f} % of full" if full else _bytes(count)
