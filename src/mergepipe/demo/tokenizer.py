"""A token is a byte. Two more mark where a document starts and ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

START: Final = 256
END: Final = 257
VOCABULARY: Final = 258

_START_TEXT: Final = "<s>"
_END_TEXT: Final = "</s>"


def tokens_of(documents: Iterable[bytes]) -> NDArray[np.int64]:
    """The documents one after another, each between `START` and `END`."""
    parts = [np.concatenate(([START], np.frombuffer(raw, np.uint8), [END])) for raw in documents]
    return np.concatenate(parts).astype(np.int64)


def tokenizer_files(context: int) -> Mapping[str, Any]:
    """The tokenizer as Hugging Face's libraries load it, by file name: byte-level BPE without any merge."""
    specials = {START: _START_TEXT, END: _END_TEXT}
    vocabulary = {letter: token for token, letter in enumerate(_letters())}
    vocabulary |= {text: token for token, text in specials.items()}
    by_byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": token, "content": text, **flags} for token, text in specials.items()],
            "normalizer": None,
            "pre_tokenizer": by_byte,
            "post_processor": None,
            "decoder": by_byte,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _START_TEXT,
            "eos_token": _END_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
        },
        "special_tokens_map.json": {"bos_token": _START_TEXT, "eos_token": _END_TEXT},
    }


def _letters() -> list[str]:
    """The visible character that byte-level tokenizers write for each byte: itself, or one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]
