"""checkpoint/safetensors.py: what a header may say, and what is said about one that lies."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

import pytest
import safetensors
from hypothesis import example, given
from hypothesis import strategies as st

from mergepipe.checkpoint.safetensors import header_bytes, parse_header
from mergepipe.core.dtypes import DTYPES, dtype
from mergepipe.core.extents import Extent
from mergepipe.errors import FormatError, OutputError, UnsupportedInput
from mergepipe.store.contract import Purpose
from mergepipe.store.memory import MemoryStore
from mergepipe.store.meter import Meter, MeteredStore
from mergepipe.testing.checkpoints import safetensors_bytes

FILE = "model.safetensors"


def parse(content: bytes) -> tuple[Any, str]:
    """What our parser makes of a file with this content."""
    return parse_header(MemoryStore({FILE: content}), FILE, "models/base")


def file_of(header: dict[str, Any] | str, payload: bytes = b"") -> bytes:
    """A file with this header, however wrong, and a true header length."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def entry(code: str = "F32", shape: tuple[int, ...] = (2,), offsets: tuple[int, ...] = (0, 8)) -> dict[str, Any]:
    """The description of one tensor."""
    return {"dtype": code, "shape": list(shape), "data_offsets": list(offsets)}


def test_extents_are_file_offsets_in_offset_order() -> None:
    """Whatever order the header's keys have, tensors come by offset, and extents count from the file's start."""
    content = file_of(
        {"b": entry(offsets=(8, 16)), "a": entry(offsets=(0, 8)), "__metadata__": {"format": "pt"}}, bytes(16)
    )
    tensors, digest = parse(content)
    origin = len(content) - 16
    assert [tensor.name for tensor in tensors] == ["a", "b"]
    assert tensors[1].extent == Extent(FILE, origin + 8, origin + 16)
    assert digest == "sha256:" + hashlib.sha256(content[:origin]).hexdigest()


def test_header_and_prefix_are_all_that_is_read() -> None:
    """The meter sees exactly the bytes before the first tensor, as HEADER."""
    content = safetensors_bytes([("w", "F32", (4,), bytes(16))])
    meter = Meter()
    parse_header(MeteredStore(MemoryStore({FILE: content}), meter, Purpose.HEADER, "base"), FILE)
    assert meter.spent().bytes[Purpose.HEADER] == len(content) - 16


def test_scalars_and_empty_tensors_are_tensors() -> None:
    """A 0-d tensor has one element, a zero-size one none; empty ones may share a place, and a file may hold nothing."""
    content = safetensors_bytes(
        [("empty", "BF16", (0, 3), b""), ("scalar", "F8_E4M3", (), b"\x40"), ("none", "F64", (2, 0), b"")]
    )
    tensors, _ = parse(content)
    assert {tensor.name: len(tensor.extent) for tensor in tensors} == {"empty": 0, "scalar": 1, "none": 0}
    assert parse(file_of("{}"))[0] == ()


MALFORMED = {
    "empty file": (b"", "is 0 bytes"),
    "short prefix": (b"\0\0\0", "is 3 bytes"),
    "header bomb": (struct.pack("<Q", 2**62) + b"{}", "announces a header of"),
    "over the cap": (struct.pack("<Q", 100_000_001) + b"{}", "allows 100,000,000"),
    "header cut": (struct.pack("<Q", 100) + b"{}", "its header alone needs 108: truncated"),
    "no header": (file_of(""), "starts with b''"),
    "not an object": (file_of("[]"), "starts with b'\\['"),
    "leading space": (file_of(" {}"), "starts with b' '"),
    "broken JSON": (file_of('{"a":'), "not valid JSON"),
    "not UTF-8": (struct.pack("<Q", 4) + b'{"\xff}', "not UTF-8"),
    "nested too deep": (file_of('{"a":' + "[" * 200_000), "beyond all bounds"),
    "endless number": (file_of('{"a":' + "1" * 5000 + "}"), "beyond all bounds"),
    "name twice": (
        file_of('{"a":%s,"a":%s}' % ((json.dumps(entry()),) * 2), bytes(8)),
        "'a' occurs twice",
    ),
    "name twice, escaped": (
        file_of('{"a":%s,"\\u0061":%s}' % ((json.dumps(entry()),) * 2), bytes(8)),
        "'a' occurs twice",
    ),
    "half a surrogate": (file_of('{"\\ud800":' + json.dumps(entry()) + "}", bytes(8)), "surrogate"),
    "metadata not text": (file_of({"__metadata__": {"a": 1}}), r"__metadata__\['a'\] is not a string"),
    "metadata not an object": (file_of({"__metadata__": "pt"}), "__metadata__ is a JSON str"),
    "no dtype": (file_of({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), r"'w' is described by \["),
    "no description": (file_of({"w": [0, 8]}, bytes(8)), "'w' is described by list"),
    "unknown dtype": (file_of({"w": entry("F33")}, bytes(8)), "'w' has the unknown dtype 'F33'"),
    "negative extent": (file_of({"w": entry(shape=(-2,))}, bytes(8)), "'w' has shape"),
    "fractional extent": (file_of('{"w":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', bytes(8)), "has shape"),
    "boolean extent": (file_of('{"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', bytes(4)), "has shape"),
    "uncountable shape": (file_of({"w": entry(shape=(2**40, 2**40, 0), offsets=(0, 0))}), "more elements than"),
    "three offsets": (file_of({"w": entry(offsets=(0, 4, 8))}, bytes(8)), "'w' has data_offsets"),
    "offsets reversed": (file_of({"w": entry(offsets=(8, 0))}, bytes(8)), "the smaller first"),
    "length against shape": (file_of({"w": entry(shape=(3,))}, bytes(8)), r"needs 12 bytes, .* span 8"),
    "overlap": (
        file_of({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
        "'b' overlaps tensor 'a' by 4 bytes",
    ),
    "hole": (
        file_of({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)),
        "4 bytes between tensor 'a' and tensor 'b'",
    ),
    "hole at the front": (file_of({"a": entry(offsets=(4, 12))}, bytes(12)), "between the header and tensor 'a'"),
    "trailing bytes": (file_of({"w": entry()}, bytes(11)), "3 trailing bytes"),
}


@pytest.mark.parametrize(("content", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_refused_by_name(content: bytes, message: str) -> None:
    """Every way to break the format has its own message, which names the file."""
    with pytest.raises(FormatError, match=message) as caught:
        parse(content)
    assert str(caught.value).startswith("models/base/model.safetensors")


def test_truncation_is_told_from_wrong_offsets() -> None:
    """A file that ends early while its header is sound is called truncated, with both sizes."""
    content = safetensors_bytes([("w", "F32", (4,), bytes(16))])
    with pytest.raises(
        FormatError, match=f"file is {len(content) - 5} bytes, header promises {len(content)}: truncated"
    ):
        parse(content[:-5])


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "F8_E8M0", "C64"])
def test_known_dtypes_without_support_are_named(code: str) -> None:
    """A dtype of the format that cannot be merged is an unsupported input, not a broken file."""
    with pytest.raises(UnsupportedInput, match=f"'w' has dtype {code}"):
        parse(file_of({"w": entry(code)}, bytes(8)))


def test_layout_refuses_names_it_could_not_read_back() -> None:
    """A name twice, or the reserved one, is a caller's error."""
    for names in (("a", "a"), ("__metadata__",)):
        with pytest.raises(ValueError, match="two header entries"):
            header_bytes([(name, "F32", (1,)) for name in names])


def test_layout_refuses_a_header_beyond_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard whose header nobody could read is not begun."""
    monkeypatch.setattr("mergepipe.checkpoint.safetensors.MAX_HEADER", 100)
    with pytest.raises(OutputError, match="lower --shard-size"):
        header_bytes([(f"tensor.{number}", "F32", (1,)) for number in range(3)])


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
layouts = st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=6)


@given(layouts, st.dictionaries(names, names, max_size=3), st.binary(max_size=8))
def test_the_library_reads_what_we_lay_out(
    layout: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str], seed: bytes
) -> None:
    """Official library and own parser agree on names, dtypes, shapes and bytes of any header we lay out."""
    entries = [(name, code, shape) for name, (code, shape) in layout.items()]
    header = header_bytes(entries, metadata)
    size = sum(math.prod(shape) * dtype(code).itemsize for _, code, shape in entries)
    payload = (hashlib.sha512(seed).digest() * (size // 64 + 1))[:size]
    content = header + payload
    assert len(header) % 8 == 0
    tensors, _ = parse(content)
    read = {name: (each["dtype"], tuple(each["shape"]), bytes(each["data"])) for name, each in library(content).items()}
    ours = {t.name: (t.dtype, t.shape, content[t.extent.start : t.extent.stop]) for t in tensors}
    assert ours == read
    assert {name: each[:2] for name, each in ours.items()} == layout


def library(content: bytes) -> dict[str, Any]:
    """What the official library makes of it."""
    return dict(safetensors.deserialize(content))  # type: ignore[no-untyped-call]


SEED_FILE = safetensors_bytes(
    [("a.weight", "F32", (2, 1), bytes(range(8))), ("b", "BF16", (), b"\x80\x3f"), ("c", "I64", (0,), b"")],
    {"format": "pt"},
)
edits = st.lists(
    st.tuples(st.integers(0, len(SEED_FILE) - 1), st.sampled_from([0, 1, 2]), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
snippets = st.sampled_from(
    [
        b"0",
        b"-0",
        b"1",
        b"1.0",
        b"1e1",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b",",
        b":",
        b" ",
        b"\\u0061",
        b"NaN",
        b"99999999999999999999",
    ]
)


@given(edits)
@example([(8, 1, 0)])
def test_random_damage_gives_an_error_or_the_librarys_reading(damage: list[tuple[int, int, int]]) -> None:
    """Bytes changed, dropped or inserted anywhere: a typed error, or exactly what the library reads."""
    content = bytearray(SEED_FILE)
    for position, kind, value in damage:
        at = min(position, len(content) - 1)
        content[at : at + (0 if kind == 2 else 1)] = b"" if kind == 1 else bytes([value])
    check_against_library(bytes(content))


@given(st.integers(0, 200), st.integers(0, 12), snippets)
def test_damaged_json_gives_an_error_or_the_librarys_reading(position: int, dropped: int, snippet: bytes) -> None:
    """The header's JSON edited token-wise, its length kept true: a typed error, or exactly what the library reads."""
    length = struct.unpack("<Q", SEED_FILE[:8])[0]
    text, payload = SEED_FILE[8 : 8 + length], SEED_FILE[8 + length :]
    at = position % length
    edited = text[:at] + snippet + text[at + dropped :]
    check_against_library(struct.pack("<Q", len(edited)) + edited + payload)


def check_against_library(content: bytes) -> None:
    """Either a typed refusal, or the library reads the same; any other exception is a failure."""
    try:
        tensors, _ = parse(content)
    except (FormatError, UnsupportedInput):
        return
    read = library(content)
    assert {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in tensors} == {
        name: (each["dtype"], each["shape"]) for name, each in read.items()
    }
    for tensor in tensors:
        assert content[tensor.extent.start : tensor.extent.stop] == bytes(read[tensor.name]["data"])
