"""What a user chooses beside the recipe: how to plan, and where the index is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mergepipe.index.storage import Shelf, default_shelf
from mergepipe.plan.family import FamilyRules
from mergepipe.plan.select import Policy


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a user chooses beside the recipe; all of it may change the result.

    `budget` is a share, a size or a number of blocks (None: full read). `block_bytes` and
    `shard_bytes` are the sizes of index blocks and output files. `seed` overrides the recipe's.
    """

    budget: str | None = None
    policy: Policy = Policy.NORM
    seed: int | None = None
    block_bytes: int = 1 << 20
    shard_bytes: int = 5 * 10**9
    rules: FamilyRules = FamilyRules()
    allow_nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Where index files are kept (None: the user's cache) and whether reading for one is allowed."""

    folder: Path | None = None
    reads: bool = True

    @property
    def shelf(self) -> Shelf:
        return Shelf(default_shelf() if self.folder is None else self.folder)
