"""The demo's tokenizer: bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mergepipe.demo.tokenizer import END, START, VOCABULARY, tokenizer_files, tokens_of

EVERY_BYTE = bytes(range(256)).decode("latin-1")


def test_tokens_are_bytes_between_marks() -> None:
    """Each document is its bytes between a start and an end mark, and all are one array."""
    assert tokens_of([b"ab", b"\xff"]).tolist() == [START, 97, 98, END, START, 255, END]


@pytest.mark.parametrize("said", ["plain text", "  two\n\tlines ", "é ∑ 你好 🙂", EVERY_BYTE, "<a> don't  stop"])
def test_transformers_makes_the_same_tokens(tmp_path: Path, said: str) -> None:
    """The files load in transformers, encode text to its UTF-8 bytes, and decode it back."""
    from transformers import AutoTokenizer

    for name, value in tokenizer_files(64).items():
        (tmp_path / name).write_text(json.dumps(value))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == VOCABULARY
    assert (loaded.bos_token_id, loaded.eos_token_id) == (START, END)
    tokens = loaded.encode(said, add_special_tokens=False)
    assert tokens == list(said.encode())
    assert loaded.decode(tokens) == said


def test_marks_are_single_tokens(tmp_path: Path) -> None:
    """Written out in text, the marks are one token each."""
    from transformers import AutoTokenizer

    for name, value in tokenizer_files(64).items():
        (tmp_path / name).write_text(json.dumps(value))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode("<s>a</s>", add_special_tokens=False) == [START, 97, END]
