"""How far one case's two models are apart; as a script, the table of docs/parity.md from all cases."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mergepipe import api
from mergepipe.testing.checkpoints import read_floats
from tests.parity.batch import Place
from tests.parity.cases import METHODS, OUT_DTYPES, Case
from tests.parity.compare import Distance, Floats, distance
from tests.parity.peer import HOW_TO, peer_python, run_batch
from tests.parity.undefined import undefined


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """One output tensor: what it was merged from, both results, how far apart they are and how much was left out.

    `changed` counts the elements that differ from the base, for us and for mergekit; `differing` those of what was
    compared that differ between the two.
    """

    name: str
    inputs: tuple[Floats, ...]
    mine: Floats
    theirs: Floats
    distance: Distance
    excluded: int
    changed: tuple[int, int]
    differing: int

    def __str__(self) -> str:
        here = self.distance.where
        mine, theirs = float(self.mine.ravel()[here]), float(self.theirs.ravel()[here])
        inputs = ", ".join(repr(float(each.ravel()[here])) for each in self.inputs)
        return (
            f"{self.name}, element {here} of {self.mine.size}: {mine!r}, mergekit {theirs!r}, merged from {inputs}: "
            f"{self.distance.worst:.3g} ulp"
        )


def comparisons(case: Case, out_dtype: str, mine: Path, theirs: Path) -> Iterator[TensorComparison]:
    """Both models of a method's case, tensor by tensor; which inputs made which tensor is told by our plan."""
    plan = api.recorded_plan(mine)
    models = [read_floats(Path(each.url)) for each in plan.logical.inputs]
    left, right = read_floats(mine), read_floats(theirs)
    for tensor in plan.logical.tensors:
        base = models[0][tensor.base]
        experts = [models[expert.input][expert.name] for expert in tensor.experts]
        skipped = undefined(case.method, tensor, base, experts) if experts else np.zeros(base.size, np.bool_)
        ours, peers = left[tensor.name], right[tensor.name]
        yield TensorComparison(
            name=tensor.name,
            inputs=(base, *experts),
            mine=ours,
            theirs=peers,
            distance=distance([base, *experts], ours, peers, out_dtype, skipped),
            excluded=int(skipped.sum()),
            changed=(int(np.count_nonzero(ours - base)), int(np.count_nonzero(peers - base))),
            differing=int(np.count_nonzero((ours != peers).ravel() & ~skipped)),
        )


def table(place: Place, python: Path) -> Iterator[str]:
    """The rows of docs/parity.md, one for each method."""
    for method, cases in METHODS.items():
        runs = [(case, out_dtype) for case in cases for out_dtype in OUT_DTYPES]
        outcomes = run_batch(python, [place.job(*run) for run in runs], place.folder / method)
        worst, differing, compared, excluded = 0.0, 0, 0, 0
        for (case, out_dtype), outcome in zip(runs, outcomes, strict=True):
            folder = place.folder / "ours" / f"{case.name}-{out_dtype}"
            folder.mkdir(parents=True)
            for each in comparisons(case, out_dtype, place.ours(case, out_dtype, folder), outcome.out):
                if out_dtype == "float32":
                    worst = max(worst, each.distance.worst)
                else:
                    differing += each.differing
                    compared += each.distance.compared
                    excluded += each.excluded
        share = excluded / (compared + excluded)
        yield (
            f"| `{method}` | {len(cases)} | {worst:.0f} | {1e6 * differing / compared:.0f} | "
            f"{f'{100 * share:.2f} %' if share else '–'} |"
        )


def main() -> None:
    """Print the table."""
    python = peer_python()
    if python is None:
        sys.exit(HOW_TO)
    with tempfile.TemporaryDirectory() as folder:
        for row in table(Place(Path(folder)), python):
            sys.stdout.write(f"{row}\n")


if __name__ == "__main__":
    main()
