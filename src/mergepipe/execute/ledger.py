"""What has been read, folded in plan order into one digest an input, and held against the index."""

from __future__ import annotations

from collections.abc import Sequence

from mergepipe.core.digest import ChainDigest
from mergepipe.core.leaves import block_digest, fold_blocks
from mergepipe.errors import StaleIndex
from mergepipe.execute.combine import StepResult, TensorTask
from mergepipe.plan.access import AccessPlan


class ReadLedger:
    """Fed step by step, in order; `digests` gives one digest for each input of the shard."""

    def __init__(self, plan: AccessPlan) -> None:
        self._plan = plan
        self._chains = [ChainDigest() for _ in plan.logical.inputs]
        self._tensor: dict[int, _TensorReads] = {}

    def retire(self, task: TensorTask, result: StepResult) -> None:
        """Account for one step of a tensor."""
        for place, blocks in result.leaves.items():
            input_ = task.tensor.base_input if place == 0 else task.tensor.experts[place - 1].input
            if place not in self._tensor:
                self._chains[input_].label(task.tensor.name)
                self._tensor[place] = _TensorReads()
            for number, leaves in blocks:
                for leaf in leaves:
                    self._chains[input_].feed(leaf)
                self._tensor[place].add(number, leaves)

    def finish_tensor(self, task: TensorTask) -> None:
        """Compare what was read of a tensor with what the plan expects. Raises `StaleIndex`."""
        access = self._plan.tensors[task.number]
        expected = [access.base_expected, *access.expected]
        for place, reads in self._tensor.items():
            if expected[place] and reads.fold() != expected[place]:
                input_ = task.tensor.base_input if place == 0 else task.tensor.experts[place - 1].input
                name = task.tensor.base if place == 0 else task.tensor.experts[place - 1].name
                raise StaleIndex(
                    f"{self._plan.logical.inputs[input_].ref}: {name}: the bytes read are not those the index "
                    "describes; the model changed since it was indexed: index again and plan again"
                )
        self._tensor.clear()

    def digests(self) -> Sequence[str]:
        return [chain.text() for chain in self._chains]


class _TensorReads:
    """Block digests of one input's reads of one tensor; a block's leaves may come in several steps."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._digests: list[int] = []
        self._open: tuple[int, list[bytes]] | None = None

    def add(self, number: int, leaves: list[bytes]) -> None:
        if self._open is not None and self._open[0] == number:
            self._open[1].extend(leaves)
            return
        self._close()
        self._open = (number, list(leaves))

    def fold(self) -> str:
        self._close()
        return fold_blocks(self._numbers, self._digests)

    def _close(self) -> None:
        if self._open is not None:
            self._numbers.append(self._open[0])
            self._digests.append(block_digest(self._open[1]))
            self._open = None
