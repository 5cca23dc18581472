"""A model's tokenizer as far as a merge is concerned: which token has which id, and which were added how.

Only this module knows the `tokenizers` library; it is loaded when a tokenizer is first read. What a merge
needs later (added tokens, row maps) is recorded in its plan, so that a replay does not need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from mergepipe.checkpoint.strictjson import parse_object
from mergepipe.core.digest import digest_of
from mergepipe.errors import FormatError, UnsupportedInput
from mergepipe.sidecar.tokens import AddedToken, ModelTokenizer
from mergepipe.store.contract import ByteStore, Purpose
from mergepipe.store.meter import Meter
from mergepipe.store.opening import open_store

FILE: Final = "tokenizer.json"
CONFIG: Final = "tokenizer_config.json"
_LARGEST: Final = 1 << 30


def read_tokenizers(models: Sequence[tuple[str, str]], meter: Meter) -> tuple[ModelTokenizer | None, ...]:
    """The tokenizers of models given as (reference, directory); None where there is no tokenizer.json.

    Equal files are parsed once. Reads are charged to SIDECAR. Raises `FormatError` for a file that is no tokenizer.
    """
    known: dict[str, ModelTokenizer] = {}
    found: list[ModelTokenizer | None] = []
    for ref, url in models:
        store = open_store(url, meter, Purpose.SIDECAR, ref)
        try:
            text, config = read_file(store, FILE), read_file(store, CONFIG)
        finally:
            store.close()
        if text is None:
            found.append(None)
            continue
        named = _named_in_config(config, f"{ref}/{CONFIG}")
        digest = digest_of([text.decode("utf-8", "replace"), [token.entry(0) for token in named]])
        if digest not in known:
            known[digest] = _parse(text, named, ref, digest)
        same = known[digest]
        found.append(ModelTokenizer(ref, same.ids, same.added, same.late, same.kind, digest))
    return tuple(found)


def read_file(store: ByteStore, key: str) -> bytes | None:
    """A small file's bytes, None if it is not there."""
    keys = store.keys()
    if key not in keys:
        return None
    size = store.version(key).size
    if size > _LARGEST:
        raise FormatError(f"{key}: is {size:,} bytes, at most {_LARGEST:,} are accepted")
    out = bytearray(size)
    store.read_into(key, 0, memoryview(out))
    return bytes(out)


def with_added(text: bytes, added: Mapping[str, tuple[int, AddedToken]], what: str) -> bytes:
    """tokenizer.json with more added tokens, given by content with their ids; the rest as it was.

    An entry of the same content is replaced. Pure JSON: needs no library. Raises `FormatError`.
    """
    document = parse_object(text, what)
    entries = document.get("added_tokens") or []
    if not isinstance(entries, list):
        raise FormatError(f"{what}: added_tokens is no list")
    kept = [entry for entry in entries if not (isinstance(entry, dict) and entry.get("content") in added)]
    kept += [token.entry(id_) for id_, token in added.values()]
    document["added_tokens"] = sorted(kept, key=lambda entry: entry.get("id", 0) if isinstance(entry, dict) else 0)
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()


def require_numbering(text: bytes, ids: Mapping[str, int], what: str) -> None:
    """Raise `UnsupportedInput` unless the library gives every token of a tokenizer.json the id that `ids` has."""
    loaded = _load(text, what).get_vocab(with_added_tokens=True)
    if loaded != ids:
        odd = next(token for token in (*ids, *loaded) if ids.get(token) != loaded.get(token))
        raise UnsupportedInput(
            f"{what}: with its new tokens added, {odd!r} has the id {loaded.get(odd)} where {ids.get(odd)} was "
            "expected: its ids have gaps, which the tokenizers library closes; load it with transformers' "
            "AutoTokenizer, save it and use the result"
        )


def _parse(text: bytes, named: Sequence[AddedToken], ref: str, digest: str) -> ModelTokenizer:
    what = f"{ref}/{FILE}"
    document = parse_object(text, what)
    loaded = _load(text, what)
    ids: dict[str, int] = loaded.get_vocab(with_added_tokens=True)
    late = [token for token in named if token.content not in ids]
    following = 1 + max(ids.values(), default=-1)
    ids |= {token.content: following + place for place, token in enumerate(late)}
    entries = document.get("added_tokens") or []
    added = [_added(entry, what) for entry in entries] + late
    return ModelTokenizer(
        ref=ref,
        ids=dict(sorted(ids.items(), key=lambda item: (item[1], item[0]))),
        added={token.content: token for token in added},
        late=tuple(token.content for token in late),
        kind=_kind(document),
        digest=digest,
    )


def _load(text: bytes, what: str) -> Any:
    try:
        return import_module("tokenizers").Tokenizer.from_buffer(text)
    except ImportError as error:
        raise UnsupportedInput(
            f"{what}: reading it needs the tokenizers library: pip install tokenizers ({error})"
        ) from error
    except Exception as error:
        raise FormatError(f"{what}: is no tokenizer the tokenizers library can read: {error}") from error


def _named_in_config(text: bytes | None, what: str) -> tuple[AddedToken, ...]:
    """The tokens that tokenizer_config.json lists, by their ids: transformers adds those that are missing."""
    if text is None:
        return ()
    listed = parse_object(text, what).get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return ()
    try:
        return tuple(_added(entry, what) for _, entry in sorted(listed.items(), key=lambda item: int(item[0])))
    except ValueError:
        raise FormatError(f"{what}: added_tokens_decoder has a key that is no token id") from None


def _added(entry: Any, what: str) -> AddedToken:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        raise FormatError(f"{what}: an added token is {entry!r:.80}; an object with a content is expected")
    special = bool(entry.get("special", False))
    flags = {flag: bool(entry.get(flag, False)) for flag in ("single_word", "lstrip", "rstrip")}
    return AddedToken(entry["content"], **flags, normalized=bool(entry.get("normalized", not special)), special=special)


def _kind(document: Mapping[str, Any]) -> str:
    """How text becomes tokens, in words: two tokenizers of one kind spell a token alike."""
    parts = []
    for key in ("model", "pre_tokenizer", "decoder"):
        part = document.get(key)
        types = _types(part) if isinstance(part, dict) else []
        parts.append("+".join(types) or "none")
    return "/".join(parts)


def _types(part: Mapping[str, Any]) -> list[str]:
    if part.get("type") == "Sequence":
        inner = part.get("pretokenizers") or part.get("decoders") or []
        return [name for each in inner if isinstance(each, dict) for name in _types(each)]
    return [str(part.get("type"))]
