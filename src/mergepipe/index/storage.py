"""The shelf: index files, and files of further facts, found again by what they were made from.

docs/index.md describes the formats. A file is used only if headers and file versions are those it
records, or if its block digests were found again in the bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from mergepipe.index.facts_file import Facts, decode_facts, encode_facts
from mergepipe.index.filing import Unusable, input_state, locked, stem, write_whole
from mergepipe.index.index_file import VERSION, encode_index, load_index, tensor_table
from mergepipe.index.model import DeltaIndex, Pair


@dataclass(frozen=True, slots=True)
class Found:
    """What the shelf knows of a pair: `index` if there is a file for it, `note` why one could not be used.

    The index may be used as it is if neither file set was touched; else its block digests of the touched
    side must be found again in the bytes.
    """

    index: DeltaIndex | None = None
    base_touched: bool = False
    expert_touched: bool = False
    note: str = ""

    @property
    def fresh(self) -> bool:
        return self.index is not None and not self.base_touched and not self.expert_touched


@dataclass(frozen=True, slots=True)
class Shelf:
    """The folder of index files; made when first written to."""

    folder: Path

    def path(self, pair: Pair) -> Path:
        """The index file of a pair, existing or not."""
        entries = [(e.name, e.base, e.size, e.expert, e.elements, e.block) for e in tensor_table(pair)]
        return self.folder / f"{_stem(pair, entries)}.mpindex.safetensors"

    def find(self, pair: Pair) -> Found:
        """Look a pair up; reads the index file only."""
        path = self.path(pair)
        try:
            header, index = load_index(path, pair)
        except FileNotFoundError:
            return Found()
        except Unusable as reason:
            return Found(note=f"{path}: not used, built anew: {reason}")
        return Found(
            index,
            base_touched=header.base.files != input_state(pair.base).files,
            expert_touched=header.expert.files != input_state(pair.expert).files,
        )

    def locked(self, pairs: Sequence[Pair]) -> AbstractContextManager[None]:
        """Hold the locks of these pairs' files; waits for other runs. Raises `OutputError`."""
        return locked(self.folder, [self.path(pair) for pair in pairs])

    def put(self, pair: Pair, index: DeltaIndex) -> DeltaIndex:
        """Write (or write anew) the file of a pair; the caller holds its lock. Returns the index as kept."""
        path = self.path(pair)
        content, kept = encode_index(pair, index, path)
        write_whole(path, content)
        return kept

    def facts(self, pair: Pair) -> Facts:
        """Further facts kept for a pair, by base tensor and need; none if any file changed since."""
        try:
            content = self._facts_path(pair).read_bytes()
        except OSError:
            return {}
        return decode_facts(content, input_state(pair.base), input_state(pair.expert))

    def keep_facts(self, pair: Pair, facts: Facts) -> None:
        """Add facts to those kept for a pair. Facts that are not finite are not kept."""
        path = self._facts_path(pair)
        with locked(self.folder, [path]):
            known = {**self.facts(pair), **facts}
            write_whole(path, encode_facts(input_state(pair.base), input_state(pair.expert), known))

    def _facts_path(self, pair: Pair) -> Path:
        entries = [(e.name, e.base, e.size, e.expert, e.elements) for e in tensor_table(pair)]
        return self.folder / f"{_stem(pair, entries)}.mpfacts.json"


def default_shelf() -> Path:
    """`mergepipe/index` in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "mergepipe" / "index"


def _stem(pair: Pair, entries: Sequence[tuple[str | int, ...]]) -> str:
    return stem([VERSION, *input_state(pair.base).identity, *input_state(pair.expert).identity, entries])
