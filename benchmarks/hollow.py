"""A family as planning sees it, without its weights: headers, configs, and an index of made-up facts.

Weight files are a header and a hole of the right size, so that eight billion parameters times 33 models take a
few megabytes of disk. Index files are written as `mergepipe index` writes them, at their real size.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.families import Family, Shape, WeightsFile, file_layout
from mergepipe import api
from mergepipe.index.index_file import DENSITIES
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Pair, PairTensor, TrimFacts
from mergepipe.index.storage import Shelf
from mergepipe.plan.pairs import index_pairs
from mergepipe.stats.sketch import SKETCH

_SHARD_BYTES: Final = 5 * 10**9
_MARKER: Final = ".hollow.json"


class UntiedShape(Shape):
    """A shape whose head is a tensor of its own."""

    def tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        return sorted([*Shape.tensors(self), ("lm_head.weight", (self.vocabulary, self.hidden))])

    def config(self) -> dict[str, Any]:
        return {**Shape.config(self), "tie_word_embeddings": False}


LLAMA_8B: Final = UntiedShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, qk_norm=False)


def parameters_of(shape: Shape) -> int:
    """How many numbers a model of this shape holds."""
    return sum(math.prod(extents) for _, extents in shape.tensors())


def write_hollow_family(folder: Path, shape: Shape, experts: int) -> Family:
    """Models `folder/base`, `folder/expert1`, …: real headers and sizes, and holes for values. Kept if it is there."""
    files = file_layout(shape, _SHARD_BYTES)
    names = ["base", *(f"expert{number}" for number in range(1, experts + 1))]
    for name in names:
        _write_hollow(folder / name, shape, files)
    return Family(folder / "base", tuple(folder / name for name in names[1:]))


def _write_hollow(model: Path, shape: Shape, files: tuple[WeightsFile, ...]) -> None:
    about = json.dumps({"shape": asdict(shape), "files": [[file.name, file.size] for file in files]})
    marker = model / _MARKER
    if marker.is_file() and marker.read_text() == about:
        return
    model.mkdir(parents=True)
    for file in files:
        with (model / file.name).open("xb") as out:
            out.write(file.header)
            out.truncate(file.size)
    weight_map = {place.name: file.name for file in files for place in file.places}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (model / "config.json").write_text(json.dumps(shape.config(), indent=2))
    marker.write_text(about)


def write_made_up_index(recipe: Path, folder: Path, seed: int = 0) -> int:
    """An index file for each pair of a recipe, with facts drawn at random; how many items (expert, block) it has.

    Norms are heavy-tailed over tensors and blocks, as in real fine-tunes; one block in eight was not touched.
    """
    pairs = index_pairs(api.check(recipe), api.PlanOptions().block_bytes)
    shelf = Shelf(folder)
    bases = {tensor.name: _base_facts(tensor, seed) for tensor in pairs[0].tensors}
    with shelf.locked(pairs):
        for number, pair in enumerate(pairs):
            if not shelf.path(pair).is_file():
                shelf.put(pair, _delta_index(pair, bases, np.random.default_rng((seed, number))))
    return sum(tensor.blocks for pair in pairs for tensor in pair.tensors)


@dataclass(frozen=True, slots=True)
class _Draws:
    """Random facts of one tensor's blocks."""

    random: np.random.Generator
    blocks: int

    def numbers(self, scale: float) -> NDArray[np.float64]:
        return scale * np.exp(self.random.normal(size=self.blocks))

    def digests(self) -> NDArray[np.uint64]:
        return self.random.integers(1, 1 << 64, self.blocks, np.uint64)


def _base_facts(tensor: PairTensor, seed: int) -> BaseFacts:
    draws = _Draws(np.random.default_rng((seed, *tensor.name.encode())), tensor.blocks)
    norms = draws.numbers(14.0)
    return BaseFacts(norms, norms / 100, np.zeros(tensor.blocks, np.int64), draws.digests())


def _delta_index(pair: Pair, bases: dict[str, BaseFacts], random: np.random.Generator) -> DeltaIndex:
    blocks, trims, sketches = {}, {}, {}
    for tensor in pair.tensors:
        draws = _Draws(random, tensor.blocks)
        norms = draws.numbers(0.1 * math.exp(random.normal()))
        norms[random.random(tensor.blocks) < 1 / 8] = 0.0
        blocks[tensor.name] = BlockFacts(
            l2=norms,
            linf=norms / 50,
            l1=norms * 500,
            nonzero=np.where(norms > 0, tensor.block, 0),
            nonfinite=np.zeros(tensor.blocks, np.int64),
            dot=norms * random.normal(size=tensor.blocks),
            digest=draws.digests(),
        )
        thresholds = np.sort(random.random(len(DENSITIES)))[::-1] * norms.max() / 50
        trims[tensor.name] = TrimFacts(thresholds, random.integers(0, tensor.base.elements, len(DENSITIES)))
        sketches[tensor.name] = random.normal(size=(tensor.blocks, SKETCH)).astype(np.float32)
    return DeltaIndex(blocks, bases, "made up", "made up", "", trims, sketches)
