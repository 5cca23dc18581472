"""Token ids of configs go with their tokens."""

from __future__ import annotations

from typing import Any

import pytest

from mergepipe.sidecar.token_ids import Renumbered, renumbered

BEFORE = {0: "a", 1: "b", 2: "c", 3: "gone"}
AFTER = {"a": 10, "b": 11, "c": 12}


@pytest.mark.parametrize(
    ("key", "value", "expected", "lost"),
    [
        ("eos_token_id", 2, 12, ()),
        ("eos_token_id", [2, 3], [12], (3,)),
        ("eos_token_id", [3], None, (3,)),
        ("pad_token_id", 3, None, (3,)),
        ("pad_token_id", -1, -1, ()),
        ("pad_token_id", 99, None, (99,)),
        ("image_token_index", 1, 11, ()),
        ("suppress_tokens", [0, 3, 2], [10, 12], (3,)),
        ("suppress_tokens", [-1], [-1], ()),
        ("begin_suppress_tokens", [], [], ()),
        ("forced_decoder_ids", [[1, 0], [2, 3], [3, None]], [[1, 10], [3, None]], (3,)),
        ("forced_decoder_ids", [[1, 3]], None, (3,)),
        ("bad_words_ids", [[0, 1], [2, 3], [2]], [[10, 11], [12]], (3,)),
        ("force_words_ids", [[[0], [3]], [[3]], [1, 2]], [[[10]], [11, 12]], (3, 3)),
        ("sequence_bias", [[[0, 1], -2.5], [[3], 1.0]], [[[10, 11], -2.5]], (3,)),
        ("lang_to_id", {"<|en|>": 1, "<|de|>": 3}, {"<|en|>": 11}, (3,)),
    ],
)
def test_ids_go_with_their_tokens(key: str, value: Any, expected: Any, lost: tuple[int, ...]) -> None:
    """In every form transformers has; what holds a lost token is left out, an emptied list is none."""
    assert renumbered(key, value, BEFORE, AFTER) == Renumbered(expected, lost)


@pytest.mark.parametrize("key", ["max_new_tokens", "vocab_size", "num_assistant_tokens", "stop_strings"])
def test_other_keys_hold_no_ids(key: str) -> None:
    """Counts and texts are left alone."""
    assert renumbered(key, 2, BEFORE, AFTER) is None
