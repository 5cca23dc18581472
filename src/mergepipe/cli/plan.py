"""`mergepipe plan`, `explain` and `sweep`: what would be read, and how far off the result can be."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from mergepipe import api
from mergepipe.api import FamilyRules, MissingRule, Policy, VocabularyRule
from mergepipe.cli import options as opt
from mergepipe.cli.output import print_json, print_lines
from mergepipe.cli.progress import TerminalObserver
from mergepipe.report.text import manifest_lines, result_lines, sweep_lines


def plan(
    config: opt.Config,
    budget: opt.Budget = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the plan for `merge --plan`.")] = None,
    policy: opt.PolicyName = Policy.NORM,
    seed: opt.Seed = None,
    block_size: opt.BlockSize = "1MiB",
    shard_size: opt.ShardSize = "5GB",
    vocab: opt.Vocab = VocabularyRule.STOP,
    missing: opt.Missing = MissingRule.STOP,
    allow_nonfinite: opt.AllowNonfinite = False,
    index: opt.IndexFolder = None,
    no_index_reads: opt.NoIndexReads = False,
    memory: opt.Memory = "512MiB",
    json: opt.Json = False,
) -> None:
    """Choose which expert blocks to read under a budget; reads no expert for it but what the index lacks."""
    options = opt.plan_options(
        budget, policy, seed, block_size, shard_size, FamilyRules(vocab, missing), allow_nonfinite
    )
    with TerminalObserver() as observer:
        where = opt.index_options(index, no_index_reads)
        planned = api.plan(config, options, where, opt.limits(memory, 2, 4), observer)
    if output is not None:
        api.save_plan(planned, output)
    print_json(planned.result) if json else print_lines(result_lines(planned.result))


def explain(
    source: Annotated[Path, typer.Argument(metavar="PLAN|OUT", help="A saved plan, a merged model or its manifest.")],
    json: opt.Json = False,
) -> None:
    """Say what is read from whom, where and why, and what is known of the error."""
    access = api.recorded_plan(source)
    if json:
        print_json({"plan_digest": access.digest, **access.identity})
        return
    print_lines(api.explain(access))
    if source.is_dir():
        print_lines(manifest_lines(api.load_manifest(source)))


def sweep(
    config: opt.Config,
    budget: Annotated[str, typer.Option("--budget", help="Budgets, separated by commas.")] = "5%,10%,30%,100%",
    policy: opt.PolicyName = Policy.NORM,
    seed: opt.Seed = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also merge at each budget and at full read, and measure the true error.")
    ] = False,
    block_size: opt.BlockSize = "1MiB",
    vocab: opt.Vocab = VocabularyRule.STOP,
    missing: opt.Missing = MissingRule.STOP,
    index: opt.IndexFolder = None,
    memory: opt.Memory = "512MiB",
    json: opt.Json = False,
) -> None:
    """Bytes and error bounds of one recipe over several budgets."""
    options = opt.plan_options(None, policy, seed, block_size, "5GB", FamilyRules(vocab, missing), False)
    budgets = [part.strip() for part in budget.split(",") if part.strip()]
    where, limits = opt.index_options(index, False), opt.limits(memory, 2, 4)
    with TerminalObserver() as observer:
        if measure:
            with tempfile.TemporaryDirectory(prefix="mergepipe-sweep-", dir=Path.cwd()) as folder:
                results = api.measured_sweep(config, budgets, Path(folder), options, where, limits, observer)
        else:
            results = api.sweep(config, budgets, options, where, limits, observer)
    print_json({"sweep": list(results)}) if json else print_lines(sweep_lines(results))
