from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepipe.core.digest import canonical_json, digest_of
from mergepipe.errors import FormatError
from mergepipe.manifest.encode import decode, encode, identity_digest, receipt_from
from mergepipe.manifest.model import FileRecord, Manifest
from mergepipe.testing.manifests import receipt_of, record_of, sample_manifest

MANIFEST = sample_manifest([record_of("model.safetensors", b"weights"), record_of("config.json", b"{}")])

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), plain, max_size=4)


def changed(**keys: Any) -> bytes:
    """The sample manifest's JSON with some top-level keys replaced."""
    return json.dumps(json.loads(encode(MANIFEST)) | keys).encode()


@given(result=objects)
def test_file_is_indented_as_the_json_module_does(result: dict[str, Any]) -> None:
    """However it is made: the text is that of `json.dumps` with an indent of two."""
    result = {key: value for key, value in result.items() if key not in {"format", "schema", "run", "identity"}}
    data = encode(replace(MANIFEST, result=result))
    assert data == json.dumps(json.loads(data), indent=2, ensure_ascii=False).encode() + b"\n"


@given(plan=objects, result=objects)
def test_reading_what_was_written_gives_the_same_manifest(plan: dict[str, Any], result: dict[str, Any]) -> None:
    """Any plan and any result survive the file exactly, so the plan's digest can be recomputed from it."""
    result = {key: value for key, value in result.items() if key not in {"format", "schema", "run", "identity"}}
    manifest = replace(sample_manifest([], plan), result=result)
    read = decode(encode(manifest), "m.json")
    assert read == manifest
    assert digest_of(read.identity.plan) == manifest.identity.plan_digest
    assert encode(read) == encode(manifest)


def test_result_keys_stand_at_the_top_level() -> None:
    """The manifest holds the keys that `merge --json` prints, beside its own four."""
    document = json.loads(encode(MANIFEST))
    assert document["expert_bytes"] == {"full": 100, "read": 30}
    assert document.keys() == MANIFEST.result.keys() | {"format", "schema", "run", "identity"}
    assert (document["format"], document["schema"]) == ("mergepipe-manifest", 1)


def test_file_is_text_for_people() -> None:
    """UTF-8 as it is spelled, indented, with a newline at the end."""
    data = encode(MANIFEST)
    assert data.endswith(b"\n}\n")
    assert "ä/β".encode() in data
    assert data.count(b"\n") > 20


def test_order_of_mappings_does_not_show() -> None:
    """Equal manifests give equal bytes, however their mappings were filled."""
    turned = replace(
        MANIFEST,
        result=dict(sorted(MANIFEST.result.items(), reverse=True)),
        identity=replace(MANIFEST.identity, plan=dict(sorted(MANIFEST.identity.plan.items(), reverse=True))),
    )
    assert encode(turned) == encode(MANIFEST)


def test_identity_digest_knows_no_clock() -> None:
    """Two runs of the same merge have the same identity digest; another output file has another."""
    later = replace(MANIFEST, run=replace(MANIFEST.run, started="2027-02-03T04:05:06Z", host="other"), result={})
    assert identity_digest(later) == identity_digest(MANIFEST)
    other = replace(MANIFEST, identity=replace(MANIFEST.identity, files=(record_of("model.safetensors", b"x"),)))
    assert identity_digest(other) != identity_digest(MANIFEST)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_number_outside_of_json_is_written(number: float) -> None:
    """NaN and infinities, which JSON lacks, are refused wherever they are."""
    with pytest.raises(ValueError, match="JSON"):
        encode(replace(MANIFEST, result={"bound": {"l2": number}}))
    with pytest.raises(ValueError, match="JSON"):
        encode(replace(MANIFEST, identity=replace(MANIFEST.identity, plan={"x": [number]})))


def test_result_cannot_take_the_formats_keys() -> None:
    """A result with a key of the format is a mistake of the program, not a damaged file later."""
    with pytest.raises(ValueError, match="identity"):
        encode(replace(MANIFEST, result={"identity": 1}))


def test_unknown_keys_are_accepted() -> None:
    """Keys are only ever added: at the top they are kept in the result, deeper they are skipped."""
    document = json.loads(encode(MANIFEST))
    document["later"] = {"a": 1}
    document["identity"]["later"] = 2
    document["identity"]["files"][0]["later"] = 3
    document["run"]["later"] = 4
    read = decode(json.dumps(document).encode(), "m.json")
    assert read.result == {**MANIFEST.result, "later": {"a": 1}}
    assert (read.identity, read.run) == (MANIFEST.identity, MANIFEST.run)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (encode(MANIFEST)[:-20], "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"NaN", "not JSON"),
        (b"[1]", "not a manifest"),
        (b"{}", "not a manifest"),
        (changed(format="mergepipe-plan"), "mergepipe-plan"),
        (changed(schema=2), "newer mergepipe"),
        (changed(schema="1"), '"schema" should be'),
        (changed(schema=True), '"schema" should be'),
        (changed(schema=0), '"schema" should be'),
        (changed(schema=None), '"schema" should be'),
        (changed(identity=[]), "identity"),
        (changed(identity={}), "missing required field"),
        (changed(run={"started": 1}), "run"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_name(data: bytes, said: str) -> None:
    """Every way not to be a manifest is a `FormatError` that names the file and what is wrong."""
    with pytest.raises(FormatError, match=said) as raised:
        decode(data, "some/dir/m.json")
    assert "some/dir/m.json" in str(raised.value)


@pytest.mark.parametrize("key", ["identity", "run"])
def test_missing_section_is_named(key: str) -> None:
    """A manifest without its identity or its run says which is missing."""
    document = json.loads(encode(MANIFEST))
    del document[key]
    with pytest.raises(FormatError, match=f"`{key}` is missing"):
        decode(json.dumps(document).encode(), "m.json")


@given(data=st.binary(max_size=64))
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    """Whatever the file holds, reading it fails as `FormatError` or not at all."""
    with pytest.raises(FormatError):
        decode(data, "m.json")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "./a", "a/", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    """A manifest from elsewhere cannot make a reader open files outside of the output."""
    with pytest.raises(ValueError, match="plain path"):
        FileRecord(name, 0, "sha256:0")
    document = json.loads(encode(MANIFEST))
    document["identity"]["files"][0]["name"] = name
    with pytest.raises(FormatError, match="plain path"):
        decode(json.dumps(document).encode(), "m.json")


def test_receipts_survive_as_plain_values() -> None:
    """A receipt written as JSON is read back equal; one with a field missing is refused with its place."""
    receipt = receipt_of("model-00001-of-00002.safetensors", b"abc")
    document = json.loads(canonical_json(receipt))
    assert receipt_from(document, "journal") == receipt
    del document["file"]["size"]
    with pytest.raises(FormatError, match=r"journal: receipt.*size"):
        receipt_from(document, "journal")


def test_manifests_are_equal_by_value() -> None:
    """Decoding twice gives equal values, so programs may compare manifests."""
    first: Manifest = decode(encode(MANIFEST), "a")
    assert first == decode(encode(MANIFEST), "b") == MANIFEST
