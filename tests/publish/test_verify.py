from __future__ import annotations

import json
from pathlib import Path

import pytest

from mergepipe.errors import FormatError, ManifestMismatch, SourceError
from mergepipe.manifest.encode import MANIFEST_NAME, encode
from mergepipe.publish.verify import verify
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.manifests import record_of, sample_manifest

FILES = {"model.safetensors": b"w" * 3_000_000, "config.json": b"{}", "sub/code.py": b"pass\n", "empty": b""}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A published output."""
    out = tmp_path / "merged"
    (out / "sub").mkdir(parents=True)
    for name, data in FILES.items():
        (out / name).write_bytes(data)
    (out / MANIFEST_NAME).write_bytes(encode(sample_manifest([record_of(n, d) for n, d in FILES.items()])))
    return out


def test_an_untouched_output_is_ok(out: Path) -> None:
    """All listed files are hashed, nothing is reported, and exactly their bytes and the manifest's are metered."""
    meter = Meter()
    report = verify(out, meter)
    assert report.ok
    assert report.checked == tuple(FILES)
    assert (report.problems, report.notes) == ((), ())
    total = sum(len(data) for data in FILES.values()) + (out / MANIFEST_NAME).stat().st_size
    assert meter.spent().bytes[Purpose.VERIFY] == sum(meter.spent().bytes.values()) == total


@pytest.mark.parametrize("position", [0, 1_500_000, 2_999_999])
def test_one_changed_byte_is_named_with_both_hashes(out: Path, position: int) -> None:
    """A flipped bit anywhere names the file, what it hashes to and what it should."""
    data = bytearray(FILES["model.safetensors"])
    data[position] ^= 1
    (out / "model.safetensors").write_bytes(data)
    report = verify(out, Meter())
    assert not report.ok
    (problem,) = report.problems
    assert problem.startswith("model.safetensors: changed")
    assert record_of("x", bytes(data)).sha256 in problem
    assert record_of("x", FILES["model.safetensors"]).sha256 in problem


def test_all_damage_is_listed_at_once(out: Path) -> None:
    """Missing, shorter and replaced files each get their line, whatever else is wrong."""
    (out / "config.json").unlink()
    (out / "model.safetensors").write_bytes(b"w")
    (out / "empty").unlink()
    (out / "empty").mkdir()
    report = verify(out, Meter())
    assert [problem.partition(":")[0] for problem in report.problems] == ["model.safetensors", "config.json", "empty"]
    assert "1 bytes" in report.problems[0]
    assert "3,000,000 bytes" in report.problems[0]
    assert "missing" in report.problems[1]


@pytest.mark.parametrize(
    "name",
    ["model-00009.safetensors", "pytorch_model.bin", "adapter_config.json", "tokenizer.json", "special_tokens_map.json",
     "modeling_x.py", "model.safetensors.index.json", "chat_template.jinja", "sub/Extra.SAFETENSORS"],
)  # fmt: skip
def test_added_files_that_loaders_read_are_problems(out: Path, name: str) -> None:
    """A file whose name alone makes a loader use it fails verification."""
    (out / name).touch()
    report = verify(out, Meter())
    assert [problem.partition(":")[0] for problem in report.problems] == [name]


@pytest.mark.parametrize("name", ["eval_results.json", "notes.md", "sub/plot.png"])
def test_other_added_files_are_notes(out: Path, name: str) -> None:
    """What a user keeps beside the model is mentioned and does no harm."""
    (out / name).touch()
    report = verify(out, Meter())
    assert report.ok
    assert report.notes == (f"{name}: not in the manifest",)


def test_an_edited_plan_is_a_problem(out: Path) -> None:
    """The plan in the manifest must still have the digest the manifest gives for it."""
    document = json.loads((out / MANIFEST_NAME).read_bytes())
    document["identity"]["plan"]["budget"] = 0.4
    (out / MANIFEST_NAME).write_text(json.dumps(document))
    report = verify(out, Meter())
    assert [problem.partition(":")[0] for problem in report.problems] == [MANIFEST_NAME]


def test_without_a_manifest_there_is_nothing_to_verify(out: Path) -> None:
    """No manifest, a broken one and no directory are three different errors, each by name."""
    (out / MANIFEST_NAME).write_bytes(b"{")
    with pytest.raises(FormatError, match=MANIFEST_NAME):
        verify(out, Meter())
    (out / MANIFEST_NAME).unlink()
    with pytest.raises(ManifestMismatch, match=MANIFEST_NAME):
        verify(out, Meter())
    with pytest.raises(SourceError, match="none"):
        verify(out / "none", Meter())
