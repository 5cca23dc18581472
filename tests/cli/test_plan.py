"""`mergepipe plan` says what it read for facts, and can be kept from reading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mergepipe.testing.checkpoints import write_family


def plan(*words: str) -> subprocess.CompletedProcess[str]:
    """`mergepipe plan … --json` in a process of its own."""
    command = [sys.executable, "-m", "mergepipe", "plan", *words, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_facts_are_read_for_once(tmp_path: Path) -> None:
    """Refused where reading is forbidden; read for and said; then neither read nor said, and allowed."""
    family = write_family(tmp_path / "family", experts=2, hidden=16, vocab=32)
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        json.dumps(
            {
                "merge_method": "sce",
                "base_model": str(family.base),
                "models": [{"model": str(path)} for path in family.experts],
                "parameters": {"select_topk": 0.3},
            }
        )
    )
    words = [str(recipe), "--index", str(tmp_path / "index")]
    refused = plan(*words, "--no-index-reads")
    assert refused.returncode == 2
    assert "--no-index-reads forbids" in refused.stderr
    first = plan(*words)
    assert first.returncode == 0
    assert "(INDEX) first" in first.stderr
    second = plan(*words, "--no-index-reads")
    assert second.returncode == 0
    assert "INDEX" not in second.stderr
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert one["index_bytes"] > two["index_bytes"] == 0
    assert one["plan_digest"] == two["plan_digest"]
