"""checkpoint/strictjson.py: JSON that cannot be read in two ways."""

from __future__ import annotations

import pytest

from mergepipe.checkpoint.strictjson import parse_object, parse_unique_object
from mergepipe.errors import FormatError


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a":{"b":1,"b":2}}', "'b' occurs twice"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b'{"a":-Infinity}', "-Infinity is not"),
        (b'{"a":-0}', "the number -0"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b'{"a":1} x', "not valid JSON"),
        (b'"text"', "holds a JSON str"),
    ],
)
def test_ambiguity_is_refused_at_any_depth(raw: bytes, message: str) -> None:
    """Whatever two readers could take differently is an error that names the file."""
    with pytest.raises(FormatError, match=f"index: .*{message}"):
        parse_unique_object(raw, "index")


def test_both_parsers_read_plain_objects_alike() -> None:
    """On ordinary JSON strictness changes nothing."""
    raw = '{"a": [1, -2, 0.5, true, null], "é": {"b": "\\u00e9"}}  \n'.encode()
    assert parse_unique_object(raw, "x") == parse_object(raw, "x") == {"a": [1, -2, 0.5, True, None], "é": {"b": "é"}}


def test_the_lenient_parser_is_pythons() -> None:
    """Configs are read as the libraries that wrote them read them."""
    assert parse_object(b'{"a":1,"a":2,"b":Infinity}', "config.json") == {"a": 2, "b": float("inf")}
