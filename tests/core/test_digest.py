"""One value, one byte string, one digest."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.digest import ChainDigest, bytes_digest, canonical_json, digest_of

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abÄ☃", max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    second: float
    first: tuple[int, ...]


@given(values)
def test_canonical_json_is_json_of_the_same_value(value: Any) -> None:
    """What is digested can be read back, floats to the last bit."""
    assert repr(json.loads(canonical_json(value))) == repr(json.loads(json.dumps(value, sort_keys=True)))


@given(st.dictionaries(st.text(max_size=4), st.integers(), max_size=6))
def test_the_order_in_which_a_mapping_was_filled_does_not_count(value: dict[str, int]) -> None:
    """Keys are sorted."""
    backwards = dict(reversed(value.items()))
    assert canonical_json(backwards) == canonical_json(value)


def test_the_form_is_fixed() -> None:
    """No spaces, UTF-8, shortest floats, integers and floats apart: digests of published plans depend on it."""
    value = {"b": [1, 1.0, 0.1, 1e22, 5e-324, -0.0], "a": {"ü": None, "Z": True}}
    expected = '{"a":{"Z":true,"ü":null},"b":[1,1.0,0.1,1e+22,5e-324,-0.0]}'
    assert canonical_json(value) == expected.encode()
    assert digest_of(value) == "sha256:" + hashlib.sha256(expected.encode()).hexdigest()


def test_values_of_types_digest_as_their_fields() -> None:
    """A frozen dataclass is an object, a tuple a list."""
    assert canonical_json(Pair(0.5, (1, 2))) == canonical_json({"first": [1, 2], "second": 0.5})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_json_cannot_hold_are_refused(value: float) -> None:
    """Neither NaN nor infinity has a canonical form."""
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"x": [value]})


def test_bytes_are_digested_by_blake3() -> None:
    """32 bytes; a window of a buffer counts as its bytes."""
    assert bytes_digest(memoryview(b"xxabcxx")[2:5]) == blake3(b"abc").digest()


def test_a_chain_separates_its_labels() -> None:
    """Moving bytes from one label to the next, or a label's end, gives another digest."""
    texts = []
    for labels, parts in [
        (["ab", "c"], [b"1", b"2"]), (["a", "bc"], [b"1", b"2"]), (["ab", "c"], [b"12", b""]),
        (["c", "ab"], [b"1", b"2"]), (["ab"], [b"12"]),
    ]:  # fmt: skip
        chain = ChainDigest()
        for label, part in zip(labels, parts, strict=True):
            chain.label(label)
            chain.feed(part)
        texts.append(chain.text())
    assert all(text.startswith("blake3:") for text in texts)
    assert all(left != right for left, right in itertools.combinations(texts, 2))


def test_a_chain_knows_no_cuts() -> None:
    """Feeding in two parts is feeding in one."""
    one, two = ChainDigest(), ChainDigest()
    one.feed(b"abcdef")
    two.feed(b"ab")
    two.feed(b"cdef")
    assert one.text() == two.text()
