"""The only door to bytes: every store handed out is metered."""

from __future__ import annotations

from pathlib import Path

from mergepipe.errors import SourceError
from mergepipe.store.contract import Access, ByteStore, Purpose
from mergepipe.store.local import LocalStore
from mergepipe.store.meter import Meter, MeteredStore


def resolve(url: str) -> str:
    """The absolute directory that `url` names, links followed.

    Raises `SourceError` if there is no such directory or the scheme is not local.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file":
        raise SourceError(f"{url}: the scheme {scheme}:// is not supported; give a local directory")
    root = Path(rest if separator else url).expanduser()
    try:
        found = root.is_dir()
    except OSError as error:
        raise SourceError(f"{root}: {error.strerror}") from error
    if not found:
        raise SourceError(
            f"{root}: no such directory; models are local directories (config.json and safetensors files)"
        )
    return str(root.resolve())


def open_store(url: str, meter: Meter, purpose: Purpose, source: str, access: Access = Access.RANGED) -> ByteStore:
    """Open the directory `url`; reads are charged to `purpose` and, if EXPERT, to `source`.

    Raises `SourceError` if there is no such directory or the scheme is not local.
    """
    return MeteredStore(LocalStore(Path(resolve(url)), access), meter, purpose, source)
