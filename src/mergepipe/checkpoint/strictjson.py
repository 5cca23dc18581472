"""JSON objects from files nobody vouches for: every way to be malformed becomes a `FormatError`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from mergepipe.errors import FormatError


def parse_unique_object(raw: bytes, what: str) -> dict[str, Any]:
    """A UTF-8 JSON object in which no key occurs twice at any depth, and no number is NaN, infinite or `-0`.

    `what` names the file in messages. Raises `FormatError`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise FormatError(f"{what}: the key {key!r} occurs twice; which one is meant cannot be known")
            found[key] = value
        return found

    def integer(text: str) -> int:
        if text == "-0":
            raise FormatError(f"{what}: the number -0 where an integer is expected")
        return int(text)

    def constant(text: str) -> NoReturn:
        raise FormatError(f"{what}: {text} is not a JSON number")

    decoder = json.JSONDecoder(object_pairs_hook=unique, parse_int=integer, parse_constant=constant)
    return _object(raw, what, decoder)


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """A UTF-8 JSON object as Python writes them: `Infinity` is allowed, of a repeated key the last counts.

    (config.json files of state-space models do hold `Infinity`.) Raises `FormatError`.
    """
    return _object(raw, what, json.JSONDecoder())


def _object(raw: bytes, what: str, decoder: json.JSONDecoder) -> dict[str, Any]:
    try:
        value = decoder.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: not UTF-8 at byte {error.start:,}") from error
    except json.JSONDecodeError as error:
        raise FormatError(f"{what}: not valid JSON at character {error.pos:,}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what}: JSON beyond all bounds (nesting too deep or a number too long)") from error
    if not isinstance(value, dict):
        raise FormatError(f"{what}: holds a JSON {type(value).__name__}, an object is expected")
    return value
