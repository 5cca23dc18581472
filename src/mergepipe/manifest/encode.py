"""Manifests as JSON files, and receipts as plain values.

The keys of `Manifest.result` stand at the top level, as `merge --json` prints them, beside `format`,
`schema`, `run` and `identity`. Keys are only ever added: what a reader does not know it keeps or skips.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from mergepipe.core.digest import canonical_json, digest_of
from mergepipe.errors import FormatError
from mergepipe.manifest.model import Identity, Manifest, Receipt, Run

MANIFEST_NAME: Final = "mergepipe_manifest.json"
FORMAT: Final = "mergepipe-manifest"
SCHEMA: Final = 1

_RESERVED: Final = frozenset({"format", "schema", "run", "identity"})
_Value = TypeVar("_Value", Identity, Run, Receipt)


def encode(manifest: Manifest) -> bytes:
    """The manifest's file: UTF-8 JSON for people and programs, equal bytes for equal manifests, ends with a newline.

    Raises `ValueError` if a number is NaN or infinite (JSON has neither), or if `result` has a key that
    the format itself uses.
    """
    taken = _RESERVED & manifest.result.keys()
    if taken:
        raise ValueError(f"the manifest's format uses {', '.join(sorted(taken))}: no key of `result` may")
    document = {"format": FORMAT, "schema": SCHEMA}
    document |= _in_order(manifest.result)
    # What a person looks for comes first: the identity holds the whole plan.
    document["run"] = _in_order(manifest.run)
    document["identity"] = _in_order(manifest.identity)
    text = json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    # Indented as `json.dumps(indent=2)` would, which encodes value by value in Python to do so.
    return msgspec.json.format(text, indent=2) + b"\n"


def decode(data: bytes, where: Path | str) -> Manifest:
    """The manifest in `data`; `where` is the file's name for messages.

    Unknown keys are accepted; those at the top level are kept in `result`. Raises `FormatError` if it is
    not JSON, not a manifest, of a newer schema, or lacks a key.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON, a {MANIFEST_NAME} is expected: {error}") from None
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise FormatError(f'{where}: not a manifest: "format" should be "{FORMAT}", found {found!r}')
    _require_schema(document.get("schema"), where)
    for key in ("identity", "run"):
        if key not in document:
            raise FormatError(f"{where}: not a whole manifest: the key `{key}` is missing")
    return Manifest(
        identity=_typed(document["identity"], Identity, f"{where}: identity"),
        run=_typed(document["run"], Run, f"{where}: run"),
        result={key: value for key, value in document.items() if key not in _RESERVED},
    )


def identity_digest(manifest: Manifest) -> str:
    """`"sha256:…"` of the identity: equal for merges that are equal in every published byte."""
    return digest_of(manifest.identity)


def receipt_from(plain: Any, where: Path | str) -> Receipt:
    """Plain JSON values → `Receipt`. Raises `FormatError` naming the field that does not fit."""
    return _typed(plain, Receipt, f"{where}: receipt")


def _require_schema(schema: Any, where: Path | str) -> None:
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise FormatError(f'{where}: "schema" should be a number from 1 to {SCHEMA}, found {schema!r}')
    if schema > SCHEMA:
        raise FormatError(
            f"{where}: manifest schema {schema} was written by a newer mergepipe; "
            f"this one reads up to {SCHEMA}: upgrade it"
        )


def _typed(plain: Any, kind: type[_Value], what: str) -> _Value:
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{what}: {error}") from None


def _in_order(value: Any) -> Any:
    """Plain values with every object's keys sorted, however the mapping was filled."""
    return json.loads(canonical_json(value))
