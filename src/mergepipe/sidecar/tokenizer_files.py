"""The output's tokenizer files: the base's or another model's, with tokens and a chat template added.

What to write is a value in the plan, and writing it needs JSON only, so that a replay writes the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from mergepipe.checkpoint.strictjson import parse_object
from mergepipe.errors import FormatError
from mergepipe.sidecar.chat import with_template
from mergepipe.sidecar.tokenizer import CONFIG, FILE, read_file, with_added
from mergepipe.sidecar.tokens import NewToken, TokenizerFiles
from mergepipe.store.contract import ByteStore

GENERATION: Final = "generation_config.json"
_FOLDER: Final = "additional_chat_templates/"
# What older tokenizers are stored as. Tokens are added to tokenizer.json only, so these would contradict it.
_OLDER_FORMS: Final = frozenset(
    ["tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
     "added_tokens.json", "tekken.json"]
)  # fmt: skip
# Those among them that hold a vocabulary; the others add to one.
_VOCABULARIES: Final = _OLDER_FORMS - {"added_tokens.json", "merges.txt"}
_TIKTOKEN: Final = ".tiktoken"
_TEMPLATES: Final = frozenset(["chat_template.jinja", "chat_template.json"])
_ALL: Final = _OLDER_FORMS | _TEMPLATES | {FILE, CONFIG, "special_tokens_map.json"}


def is_tokenizer_file(key: str) -> bool:
    """Whether a file of a model directory belongs to its tokenizer."""
    return key in _ALL or key.startswith(_FOLDER) or key.endswith(_TIKTOKEN)


def other_form(keys: Iterable[str]) -> str | None:
    """The first of these files, by name, that holds a vocabulary in another form than tokenizer.json."""
    return next((key for key in sorted(keys) if key in _VOCABULARIES or key.endswith(_TIKTOKEN)), None)


def tokenizer_texts(files: TokenizerFiles, donor: ByteStore, base: ByteStore) -> dict[str, bytes | None]:
    """The files that differ from the base's own: their bytes by name; None for one that is not in the output.

    `donor` is where the tokenizer is from, `base` the base model. Raises `FormatError` if tokens are to be added
    and there is no tokenizer.json to add them to.
    """
    texts: dict[str, bytes | None] = {}
    theirs, own = (filter(is_tokenizer_file, store.keys()) for store in (donor, base))
    held = {key: read_file(donor, key) or b"" for key in theirs}
    if files.input != 0:
        texts |= dict.fromkeys(own)
        texts |= held
    where = files.ref or "the base"
    if files.added:
        if FILE not in held:
            raise FormatError(f"{where}: has no {FILE} to add tokens to")
        tokens = {each.token.content: (each.id, each.token) for each in files.added}
        texts[FILE] = with_added(held[FILE], tokens, f"{where}/{FILE}")
        texts |= {key: None for key in held if key in _OLDER_FORMS or key.endswith(_TIKTOKEN)}
        if CONFIG in held:
            held[CONFIG] = _config_with_added(held[CONFIG], files.added, f"{where}/{CONFIG}")
            texts[CONFIG] = held[CONFIG]
    if files.chat_template is not None:
        texts |= with_template(held, files.chat_template, where)
    if files.generation:
        generation = read_file(base, GENERATION)
        if generation is not None:
            document = parse_object(generation, GENERATION)
            document.update(files.generation)
            texts[GENERATION] = (json.dumps(document, indent=2) + "\n").encode()
    return texts


def _config_with_added(text: bytes, added: tuple[NewToken, ...], what: str) -> bytes:
    """tokenizer_config.json; its list of added tokens, where it has one, gains the new ones."""
    document = parse_object(text, what)
    listed = document.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return text
    fresh = {each.token.content for each in added}
    kept = {
        key: entry for key, entry in listed.items() if not isinstance(entry, dict) or entry.get("content") not in fresh
    }
    for each in added:
        entry = each.token.entry(each.id)
        del entry["id"]
        kept[str(each.id)] = entry
    document["added_tokens_decoder"] = dict(sorted(kept.items(), key=lambda item: int(item[0])))
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()
