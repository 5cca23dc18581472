"""The demo from end to end: a family, merges of it at several budgets, and what they cost in error and loss."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.core.units import format_bytes
from mergepipe.demo.family import Family, ensure_family
from mergepipe.demo.process import lines_of
from mergepipe.demo.settings import DemoSettings
from mergepipe.execute.distance import stored_distance
from mergepipe.store.meter import Meter

# (recipe, output folder, budget) → the result object of a merge. It replaces what an earlier demo left there.
Merge = Callable[[Path, Path, str], Mapping[str, Any]]
Losses = Mapping[str, float]

_FULL: Final = "100%"

# The recipes' parameters, and the budgets to merge at. The full read is what the others are compared with.
_METHODS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "task_arithmetic": ("{weight: 0.4}", ("10%", "30%", _FULL)),
    "ties": ("{weight: 1.0, density: 0.5, lambda: 0.5}", ("10%", "30%", _FULL)),
}


@dataclass(frozen=True, slots=True)
class DemoMerge:
    """One merge: its result object, how far its stored weights are from the full read's, and its losses.

    `true_error` is ‖θ − θ_full‖₂, `relative_error` that over ‖θ_full − θ₀‖₂ (None if the full merge is the base).
    """

    method: str
    budget: str
    result: Mapping[str, Any]
    true_error: float
    relative_error: float | None
    loss: Losses

    @property
    def name(self) -> str:
        return f"{self.method} {self.budget}"

    @property
    def largest_error(self) -> float | None:
        """The most that stored weights may differ by: the bound and its rounding term. None without a bound."""
        bound = self.result["bound"]
        return None if bound["kind"] == "none" else float(bound["l2"] + bound["rounding_l2"])


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What the demo found. Losses are on held-out text, by domain, in nats per byte."""

    folder: str
    parameters: int
    base_loss: Losses
    expert_loss: Mapping[str, Losses]
    merges: tuple[DemoMerge, ...]
    seconds: Mapping[str, float]

    def as_object(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """As text for people, at most 120 columns wide."""
        domains = list(self.base_loss)
        yield f"{self.folder}: a Llama of {self.parameters:,} parameters and a fine-tune of it for each domain"
        yield "  ".join(f"{stage} {seconds:.0f} s" for stage, seconds in self.seconds.items())
        yield ""
        yield "held-out loss, nats per byte (lower is better)"
        losses = {"base": self.base_loss}
        losses |= {f"expert {name}": loss for name, loss in self.expert_loss.items()}
        losses |= {merge.name: merge.loss for merge in self.merges}
        yield from _table(
            ["", *domains, "mean"],
            [[name, *(f"{loss[d]:.3f}" for d in domains), f"{_mean(loss):.3f}"] for name, loss in losses.items()],
        )
        yield ""
        yield "what was read of the experts, and the distance to the full read, ‖θ − θ_full‖₂ (of the full update)"
        yield from _table(
            ["", "read", "of full", "at most (mark)", "of which rounding", "measured", "of update"],
            [_cost(merge) for merge in self.merges],
        )
        for merge in self.merges:
            if merge.result["bound"]["kind"] == "none":
                yield f"{merge.name}: no bound: {merge.result['bound']['reason']}"


def run_demo(
    folder: Path, merge: Merge, note: Callable[[str], None], settings: DemoSettings | None = None
) -> DemoReport:
    """Make the family in `folder` (or find it there), merge it by `merge`, measure. `note` is told what goes on.

    Raises `UsageError` where torch is missing or `folder` holds anything but a demo.
    """
    chosen = DemoSettings() if settings is None else settings
    place = folder.expanduser().resolve()
    started = perf_counter()
    family = ensure_family(place, chosen, note)
    trained = perf_counter()
    results = _merge_all(place, family, merge, note)
    merged = perf_counter()
    note("measuring loss on held-out text")
    models = [family.base, *family.experts.values(), *(_output(place, *key) for key in results)]
    losses = json.loads("".join(lines_of("mergepipe.demo.evaluate", [chosen.to_json(), *map(str, models)])))
    merges = _compare(place, family, results, losses)
    return DemoReport(
        folder=str(folder),
        parameters=sum(tensor.elements for tensor in open_checkpoint(str(family.base), Meter()).tensors.values()),
        base_loss=losses[str(family.base)],
        expert_loss={name: losses[str(path)] for name, path in family.experts.items()},
        merges=merges,
        seconds={"family": trained - started, "merges": merged - trained, "measuring": perf_counter() - merged},
    )


def _merge_all(
    place: Path, family: Family, merge: Merge, note: Callable[[str], None]
) -> dict[tuple[str, str], Mapping[str, Any]]:
    results = {}
    for folder in ("recipes", "merged"):
        (place / folder).mkdir(exist_ok=True)
    for method, (parameters, budgets) in _METHODS.items():
        recipe = place / "recipes" / f"{method}.yml"
        recipe.write_text(_recipe(method, parameters, family))
        for budget in budgets:
            note(f"merging {method} at {budget}")
            results[method, budget] = merge(recipe, _output(place, method, budget), budget)
    return results


def _recipe(method: str, parameters: str, family: Family) -> str:
    # Whole paths: a relative one would be looked for in the current directory first.
    lines = [f"merge_method: {method}", f"base_model: {json.dumps(str(family.base))}", "models:"]
    lines += [f"  - model: {json.dumps(str(path))}" for path in family.experts.values()]
    return "\n".join([*lines, f"parameters: {parameters}", "dtype: bfloat16", ""])


def _output(place: Path, method: str, budget: str) -> Path:
    return place / "merged" / f"{method}-{budget.removesuffix('%')}"


def _compare(
    place: Path,
    family: Family,
    results: Mapping[tuple[str, str], Mapping[str, Any]],
    losses: Mapping[str, Losses],
) -> tuple[DemoMerge, ...]:
    update = {method: _distance(_output(place, method, _FULL), family.base) for method in _METHODS}
    merges = []
    for (method, budget), result in results.items():
        output = _output(place, method, budget)
        error = _distance(output, _output(place, method, _FULL))
        relative = error / update[method] if update[method] else None
        merges.append(DemoMerge(method, budget, result, error, relative, losses[str(output)]))
    return tuple(merges)


def _distance(left: Path, right: Path) -> float:
    meter = Meter()
    return stored_distance(open_checkpoint(str(left), meter), open_checkpoint(str(right), meter), meter)


def _cost(merge: DemoMerge) -> list[str]:
    expert, bound = merge.result["expert_bytes"], merge.result["bound"]
    most = merge.largest_error
    return [
        merge.name,
        format_bytes(expert["read"]),
        f"{100 * expert['read'] / expert['full']:.2f} %",
        "none" if most is None else f"{most:.4f} ({bound['kind']})",
        "" if most is None else f"{bound['rounding_l2']:.4f}",
        f"{merge.true_error:.4f}",
        "" if merge.relative_error is None else f"{100 * merge.relative_error:.1f} %",
    ]


def _mean(loss: Losses) -> float:
    return sum(loss.values()) / len(loss)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as their widest word; the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        first, *others = (word.ljust(width) for word, width in zip(row, widths, strict=True))
        yield "  ".join([first, *(word.strip().rjust(width) for word, width in zip(others, widths[1:], strict=True))])
