"""`mergepipe check` and `verify`: look at inputs before a merge and at outputs after it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mergepipe import api
from mergepipe.api import FamilyRules, MissingRule, VocabularyRule
from mergepipe.cli import options as opt
from mergepipe.cli.output import print_json, print_lines
from mergepipe.errors import IncompatibleModels, ManifestMismatch
from mergepipe.report.text import check_lines, check_object


def check(
    config: opt.Config,
    vocab: opt.Vocab = VocabularyRule.STOP,
    missing: opt.Missing = MissingRule.STOP,
    json: opt.Json = False,
) -> None:
    """Preflight: alignment, vocabularies, dtypes, sizes. Reads headers and configs only."""
    found = api.check(config, FamilyRules(vocab, missing))
    print_json(check_object(found)) if json else print_lines(check_lines(found))
    if found.errors:
        raise IncompatibleModels(f"{config}: {len(found.errors)} problems stop this merge (listed above)")


def verify(
    out: Annotated[Path, typer.Argument(help="A merged model.")],
    json: opt.Json = False,
) -> None:
    """Hash every file of a merged model against its manifest."""
    report = api.verify(out)
    if json:
        print_json(
            {
                "ok": report.ok,
                "files": len(report.checked),
                "problems": list(report.problems),
                "notes": list(report.notes),
            }
        )
    else:
        print_lines(
            [*report.problems, f"{len(report.checked)} files checked: {'ok' if report.ok else 'NOT as published'}"]
        )
    if not report.ok:
        raise ManifestMismatch(f"{out}: {'; '.join(report.problems)}")
