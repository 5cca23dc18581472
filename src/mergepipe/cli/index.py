"""`mergepipe index`: know the deltas before the first merge under a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mergepipe import api
from mergepipe.api import FamilyRules, MissingRule, Policy, VocabularyRule
from mergepipe.cli import options as opt
from mergepipe.cli.output import print_json, print_lines
from mergepipe.cli.progress import TerminalObserver
from mergepipe.core.units import format_bytes
from mergepipe.errors import UsageError


def index(
    words: Annotated[
        list[str], typer.Argument(metavar="CONFIG|CHECKPOINTS…", help="A recipe, or experts (with --base).")
    ],
    base: Annotated[str | None, typer.Option("--base", help="The base the experts were fine-tuned from.")] = None,
    block_size: opt.BlockSize = "1MiB",
    vocab: opt.Vocab = VocabularyRule.STOP,
    missing: opt.Missing = MissingRule.STOP,
    folder: opt.IndexFolder = None,
    memory: opt.Memory = "512MiB",
    workers: opt.Workers = 2,
    json: opt.Json = False,
) -> None:
    """Build or find the index of each (base, expert) pair.

    Of a recipe, also all further facts that its method needs.
    """
    options = opt.plan_options(None, Policy.NORM, None, block_size, "5GB", FamilyRules(vocab, missing), False)
    where, limits = opt.index_options(folder, False), opt.limits(memory, workers, 4)
    with TerminalObserver() as observer:
        if base is not None:
            knowledge = api.build_index(base, words, options, where, limits, observer)
        elif len(words) == 1 and Path(words[0]).is_file():
            knowledge = api.build_index_of(Path(words[0]), options, where, limits, observer)
        else:
            raise UsageError("index takes one recipe file, or checkpoints and --base BASE")
    if json:
        built, reused = list(knowledge.built), list(knowledge.reused)
        print_json({"built": built, "reused": reused, "index_bytes": knowledge.index_bytes})
        return
    print_lines([f"built   {path}" for path in knowledge.built])
    print_lines([f"reused  {path}" for path in knowledge.reused])
    print_lines([f"read    {format_bytes(knowledge.index_bytes)} ({knowledge.index_bytes:,} bytes)"])
