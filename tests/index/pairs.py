"""Small families on disk as the index is given them, and their facts by whole-tensor numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mergepipe.checkpoint.model import Checkpoint, TensorInfo
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.core.blocks import block_grid
from mergepipe.index.model import BaseFacts, BlockFacts, DeltaIndex, Pair, PairTensor
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import write_checkpoint

Typed = Mapping[str, tuple[str, NDArray[Any]]]

SHAPES = {"embed": (50, 24), "up": (40, 24), "down": (24, 40), "norm": (24,), "scale": ()}


def weights(seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, NDArray[np.float64]]:
    """A base model."""
    draw = np.random.default_rng(seed)
    return {name: np.asarray(0.02 * draw.standard_normal(shape)) for name, shape in shapes.items()}


def moved(base: Mapping[str, NDArray[Any]], seed: int) -> dict[str, NDArray[np.float64]]:
    """A fine-tune: heavy-tailed deltas."""
    draw = np.random.default_rng(seed)
    return {name: np.asarray(value + 1e-3 * draw.standard_t(3, value.shape)) for name, value in base.items()}


def typed(values: Mapping[str, NDArray[Any]], code: str) -> dict[str, tuple[str, NDArray[Any]]]:
    """All tensors with one dtype."""
    return {name: (code, value) for name, value in values.items()}


def write_models(folder: Path, base: Typed, *experts: Typed) -> list[Path]:
    """Write the directories `base`, `expert1`, and so on."""
    models = {"base": base, **{f"expert{n}": expert for n, expert in enumerate(experts, start=1)}}
    return [write_checkpoint(folder / name, tensors) for name, tensors in models.items()]


def small_family(folder: Path, experts: int = 2, code: str = "BF16") -> list[Path]:
    """A base and fine-tunes of it, with tensors of a few hundred elements."""
    base = weights(1)
    return write_models(folder, typed(base, code), *(typed(moved(base, n), code) for n in range(2, 2 + experts)))


def pairs_of(models: Sequence[Path], block_bytes: int = 512) -> list[Pair]:
    """Open the models anew and pair each with the first; where an expert has fewer rows they are what counts."""
    opened = [open_checkpoint(str(path), Meter()) for path in models]
    return [_pair(opened[0], expert, f"{n}:{expert.ref}", block_bytes) for n, expert in enumerate(opened[1:])]


def _pair(base: Checkpoint, expert: Checkpoint, source: str, block_bytes: int) -> Pair:
    tensors = []
    for info in base.tensors.values():
        mine = expert.tensors.get(info.name)
        if mine is not None and info.elements:
            grid = block_grid(info.shape, info.storage.itemsize, block_bytes)
            tensors.append(PairTensor(info, mine, min(info.elements, mine.elements), grid.block, info.name))
    return Pair(base, expert, source, tuple(tensors))


def stored_values(checkpoint: Checkpoint, info: TensorInfo) -> NDArray[Any]:
    """The stored values of one tensor, flat: float64 for F64, else float32."""
    raw = np.fromfile(Path(checkpoint.url) / info.extent.key, np.uint8)[info.extent.start : info.extent.stop]
    return raw.view(info.storage.numpy).astype(info.storage.compute)


def naive_delta(pair: Pair, tensor: PairTensor) -> NDArray[Any]:
    """δ over the base tensor's elements, zeros beyond what the expert covers."""
    base = stored_values(pair.base, tensor.base)
    expert = stored_values(pair.expert, tensor.expert)[: tensor.elements]
    kind = np.result_type(base.dtype, expert.dtype)
    delta = np.zeros(base.size, kind)
    with np.errstate(invalid="ignore", over="ignore"):
        delta[: tensor.elements] = expert.astype(kind) - base[: tensor.elements].astype(kind)
    return delta


def check_against_naive(index: DeltaIndex, pair: Pair) -> None:
    """Every block fact of an index is what whole-tensor arithmetic gives, to rounding of float64 sums."""
    for tensor in pair.tensors:
        base = stored_values(pair.base, tensor.base).astype(np.float64)
        delta = naive_delta(pair, tensor).astype(np.float64)
        facts, known = index.blocks[tensor.base.name], index.base[tensor.base.name]
        assert facts.l2.size == known.l2.size == tensor.blocks
        for block in range(tensor.blocks):
            span = slice(block * tensor.block, min((block + 1) * tensor.block, base.size))
            _check_block(facts, known, block, base[span], delta[span])


def _check_block(
    facts: BlockFacts, known: BaseFacts, block: int, base: NDArray[np.float64], delta: NDArray[np.float64]
) -> None:
    fine = np.where(np.isfinite(delta), delta, 0.0)
    ground = np.where(np.isfinite(base), base, 0.0)
    close = {"rel_tol": 1e-12, "abs_tol": 1e-300}
    assert math.isclose(facts.l2[block], math.sqrt(math.fsum(fine**2)), **close)
    assert math.isclose(facts.l1[block], math.fsum(np.abs(fine)), **close)
    assert facts.linf[block] == np.abs(fine).max()
    assert facts.nonzero[block] == np.count_nonzero(delta)
    assert facts.nonfinite[block] == np.count_nonzero(~np.isfinite(delta))
    terms = ground * fine
    assert math.isclose(facts.dot[block], math.fsum(terms), rel_tol=1e-12, abs_tol=1e-14 * math.fsum(np.abs(terms)))
    assert math.isclose(known.l2[block], math.sqrt(math.fsum(ground**2)), **close)
    assert known.linf[block] == np.abs(ground).max()
    assert known.nonfinite[block] == np.count_nonzero(~np.isfinite(base))


def same_index(left: DeltaIndex, right: DeltaIndex) -> bool:
    """Whether two indices hold the same facts, bit for bit (paths aside)."""
    return _flat(left) == _flat(right)


def _flat(index: DeltaIndex) -> list[Any]:
    flat: list[Any] = [index.content_digest, index.base_content_digest]
    for group in (index.blocks, index.base, index.trims):
        for name, facts in group.items():
            flat += [(name, field, getattr(facts, field).tobytes()) for field in facts.__slots__]
    return flat + [(name, rows.tobytes()) for name, rows in index.sketches.items()]
