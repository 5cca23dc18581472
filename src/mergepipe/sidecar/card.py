"""The model card: README.md of a merged model, from plain fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

_BACKTICKS: Final = re.compile(r"`+")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_SNAPSHOT: Final = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)/snapshots/[^/]+/?$")


@dataclass(frozen=True, slots=True)
class CardFields:
    """What the card says. `base_ref` and `expert_refs` are as the recipe names them, in its order.

    `recipe` is the recipe's YAML; `read_lines` say what was read of what under which budget; `bound_line` is
    the bound with its mark, one sentence. All but `recipe` are single lines of plain text.
    """

    title: str
    method: str
    base_ref: str | None
    expert_refs: tuple[str, ...]
    recipe: str
    read_lines: tuple[str, ...]
    bound_line: str
    plan_digest: str


def model_card(fields: CardFields) -> str:
    """README.md: YAML front matter as the Hub reads it, then the merge in words. No dates: it replays."""
    refs = [ref for ref in (fields.base_ref, *fields.expert_refs) if ref is not None]
    count = f"{len(fields.expert_refs)} model{'s' if len(fields.expert_refs) != 1 else ''}"
    parts = [
        _front_matter(refs),
        f"# {_plain(fields.title)}",
        f"A merge of {count} by {_code(fields.method)}, made with MergePipe.",
        "## Models\n\n" + _models(fields),
        "## What was read\n\n" + "\n".join(f"* {_plain(line)}" for line in fields.read_lines),
        "## Distance from the full-read merge\n\n" + _plain(fields.bound_line),
        "## Recipe\n\n" + _fenced(fields.recipe, "yaml"),
        _closing(fields.plan_digest),
    ]
    text = "\n\n".join(parts) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # file names need not be Unicode


def hub_id(ref: str) -> str | None:
    """`org/name` if `ref` provably came from the Hub, else None.

    Proof is a snapshot folder of the Hub's cache, or an `hf://` address. A bare `a/b` is none: while models
    are local directories it is a relative path, and a card that names a stranger's model as the base
    would be worse than one that names nobody.
    """
    found = _SNAPSHOT.search(ref)
    name = f"{found[1]}/{found[2]}" if found else ref.removeprefix("hf://").partition("@")[0]
    if (found or ref.startswith("hf://")) and _HUB_NAME.fullmatch(name):
        return name
    return None


def _front_matter(refs: Sequence[str]) -> str:
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["merge", "mergepipe"]}
    names = list(dict.fromkeys(name for name in map(hub_id, refs) if name))
    if names:
        front |= {"base_model": names, "base_model_relation": "merge"}
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---"


def _models(fields: CardFields) -> str:
    base = [f"* base: {_code(fields.base_ref)}"] if fields.base_ref is not None else []
    return "\n".join(base + [f"* {_code(ref)}" for ref in fields.expert_refs])


def _closing(plan_digest: str) -> str:
    return (
        f"The inputs, the plan ({_code(plan_digest)}) and the hash of every file are in `mergepipe_manifest.json`: "
        "`mergepipe verify` checks them, `mergepipe replay` makes the same files again."
    )


def _plain(text: str) -> str:
    """One line, with what Markdown or HTML would take as markup escaped."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    """A code span that holds `text` whatever it contains."""
    line = " ".join(text.split())
    ticks = "`" * (max(map(len, _BACKTICKS.findall(line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def _fenced(text: str, language: str) -> str:
    ticks = "`" * max(3, max(map(len, _BACKTICKS.findall(text)), default=0) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"
