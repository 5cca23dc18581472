"""`mergepipe merge` and `mergepipe replay`: what publishes a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mergepipe import api
from mergepipe.api import FamilyRules, MissingRule, Policy, VocabularyRule
from mergepipe.cli import options as opt
from mergepipe.cli.output import print_json, print_lines
from mergepipe.cli.progress import TerminalObserver
from mergepipe.errors import UsageError
from mergepipe.report.text import result_lines


def merge(
    words: Annotated[
        list[Path], typer.Argument(metavar="CONFIG OUT", help="The recipe and OUT; only OUT with --plan.")
    ],
    budget: opt.Budget = None,
    policy: opt.PolicyName = Policy.NORM,
    seed: opt.Seed = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Execute a plan that `plan -o` saved.")] = None,
    block_size: opt.BlockSize = "1MiB",
    shard_size: opt.ShardSize = "5GB",
    vocab: opt.Vocab = VocabularyRule.STOP,
    missing: opt.Missing = MissingRule.STOP,
    allow_nonfinite: opt.AllowNonfinite = False,
    index: opt.IndexFolder = None,
    no_index_reads: opt.NoIndexReads = False,
    memory: opt.Memory = "512MiB",
    workers: opt.Workers = 2,
    readers: opt.Readers = 4,
    overwrite: opt.Overwrite = False,
    intermediate: Annotated[
        Path | None,
        typer.Option("--intermediate-dir", help="Where named recipes of a file of several go. Default: OUT.stages."),
    ] = None,
    json: opt.Json = False,
) -> None:
    """Merge the models of a recipe into OUT, reading no more of the experts than the budget allows."""
    limits = opt.limits(memory, workers, readers)
    options = opt.plan_options(
        budget, policy, seed, block_size, shard_size, FamilyRules(vocab, missing), allow_nonfinite
    )
    with TerminalObserver() as observer:
        if plan is not None:
            if len(words) != 1:
                raise UsageError(f"merge --plan takes OUT alone, found {len(words)} arguments")
            if options != api.PlanOptions():
                raise UsageError("merge --plan: the plan settles budget, policy, seed and sizes; drop those options")
            result = api.merge_planned(plan, words[0], limits, overwrite, observer)
        else:
            if len(words) != 2:
                raise UsageError(f"merge takes CONFIG and OUT, found {len(words)} arguments")
            where = opt.index_options(index, no_index_reads)
            result = api.merge(words[0], words[1], options, where, limits, overwrite, observer, intermediate)
    print_json(result) if json else print_lines(result_lines(result))


def replay(
    source: Annotated[Path, typer.Argument(metavar="OUT|MANIFEST", help="A merged model, or its manifest file.")],
    new_out: Annotated[Path, typer.Argument(help="Where to publish the replayed model.")],
    memory: opt.Memory = "512MiB",
    workers: opt.Workers = 2,
    readers: opt.Readers = 4,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
) -> None:
    """Merge again exactly as a manifest records; stops, naming it, if an input has changed."""
    limits = opt.limits(memory, workers, readers)
    with TerminalObserver() as observer:
        result = api.replay(source, new_out, limits, overwrite, observer)
    print_json(result) if json else print_lines(result_lines(result))
