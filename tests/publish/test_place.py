from __future__ import annotations

from pathlib import Path

import pytest

from mergepipe.errors import PublishConflict
from mergepipe.publish.place import located, lock_file, staging_folder, staging_folders


@pytest.mark.parametrize("out", ["/", ".", "..", "a/.."])
def test_out_needs_a_name(out: str) -> None:
    """A path that names no directory of its own cannot be published to, and is refused by name."""
    with pytest.raises(PublishConflict, match="name of its own"):
        located(Path(out))


def test_relative_out_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of working directory later does not move OUT."""
    monkeypatch.chdir(tmp_path)
    assert located(Path("merged/")) == tmp_path / "merged"


def test_own_names_are_hidden_siblings(tmp_path: Path) -> None:
    """Lock and staging folder lie beside OUT, so on its file system, and a digest's prefix is not part of the name."""
    out = tmp_path / "merged"
    assert lock_file(out) == tmp_path / ".merged.mergepipe.lock"
    assert staging_folder(out, "sha256:" + "0123456789abcdef" * 4) == tmp_path / ".merged.mergepipe-0123456789abcdef"
    assert staging_folder(out, "0123456789abcdef" * 4) == tmp_path / ".merged.mergepipe-0123456789abcdef"


def test_only_this_outs_staging_folders_are_found(tmp_path: Path) -> None:
    """Other outputs' folders, files and links of such a name are not ours to clear; a missing parent has none."""
    mine = [tmp_path / ".m.n.mergepipe-0000000000000000", tmp_path / ".m.n.mergepipe-ffffffffffffffff"]
    others = [".mxn.mergepipe-0000000000000000", ".m.n.mergepipe-00000000000000000", ".m.n.mergepipe-backup", ".m.n"]
    for folder in (*mine, *(tmp_path / name for name in others)):
        folder.mkdir()
    (tmp_path / ".m.n.mergepipe-1111111111111111").touch()
    (tmp_path / ".m.n.mergepipe-2222222222222222").symlink_to(tmp_path / ".m.n")
    assert staging_folders(tmp_path / "m.n") == mine
    assert staging_folders(tmp_path / "none" / "m.n") == []
