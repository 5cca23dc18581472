"""Options that several commands share, and how their words become values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mergepipe.api import FamilyRules, IndexOptions, Limits, MissingRule, PlanOptions, Policy, VocabularyRule
from mergepipe.core.units import parse_bytes
from mergepipe.errors import UsageError

Config: TypeAlias = Annotated[Path, typer.Argument(help="The recipe: a mergekit YAML file.", show_default=False)]
Out: TypeAlias = Annotated[Path, typer.Argument(help="The folder to publish the merged model as.", show_default=False)]
Budget: TypeAlias = Annotated[
    str | None,
    typer.Option("--budget", help="Expert bytes to read at most: 30%, 2GiB or 4096blocks. Default: all."),
]
PolicyName: TypeAlias = Annotated[Policy, typer.Option("--policy", help="How blocks are chosen under a budget.")]
Seed: TypeAlias = Annotated[int | None, typer.Option("--seed", help="Overrides the recipe's seed (default 0).")]
BlockSize: TypeAlias = Annotated[str, typer.Option("--block-size", help="Size of index blocks.")]
ShardSize: TypeAlias = Annotated[str, typer.Option("--shard-size", help="Largest output weight file.")]
Vocab: TypeAlias = Annotated[
    VocabularyRule, typer.Option("--vocab", help="Vocabulary rows that differ: stop, or merge the common rows.")
]
Missing: TypeAlias = Annotated[
    MissingRule, typer.Option("--missing", help="Tensors an expert lacks: stop, or merge those without it.")
]
AllowNonfinite: TypeAlias = Annotated[
    bool, typer.Option("--allow-nonfinite", help="Go on where inputs hold NaN or infinity; no bound then.")
]
IndexFolder: TypeAlias = Annotated[
    Path | None, typer.Option("--index", help="Where index files are kept. Default: the user's cache.")
]
NoIndexReads: TypeAlias = Annotated[
    bool, typer.Option("--no-index-reads", help="Stop if facts are missing, instead of reading for them.")
]
Memory: TypeAlias = Annotated[str, typer.Option("--memory", help="Bound on data buffers.")]
Workers: TypeAlias = Annotated[int, typer.Option("--workers", min=1, help="Threads that compute.")]
Readers: TypeAlias = Annotated[int, typer.Option("--readers", min=1, help="Threads that read.")]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if MergePipe made all of it.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def limits(memory: str, workers: int, readers: int) -> Limits:
    """`--memory`, `--workers`, `--readers` → `Limits`."""
    return Limits(_positive(memory, "--memory"), readers, workers)


def index_options(folder: Path | None, no_reads: bool) -> IndexOptions:
    """`--index`, `--no-index-reads` → `IndexOptions`."""
    return IndexOptions(folder, not no_reads)


def plan_options(
    budget: str | None,
    policy: Policy,
    seed: int | None,
    block_size: str,
    shard_size: str,
    rules: FamilyRules,
    allow_nonfinite: bool,
) -> PlanOptions:
    """The options that may change a result → `PlanOptions`."""
    return PlanOptions(
        budget=budget,
        policy=policy,
        seed=seed,
        block_bytes=_positive(block_size, "--block-size"),
        shard_bytes=_positive(shard_size, "--shard-size"),
        rules=rules,
        allow_nonfinite=allow_nonfinite,
    )


def _positive(text: str, option: str) -> int:
    size = parse_bytes(text, option)
    if size <= 0:
        raise UsageError(f"{option}: {text!r} must be more than nothing")
    return size
