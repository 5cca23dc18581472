"""Inner products of several experts: equal to the plain ones, however tensors are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mergepipe import api
from mergepipe.checkpoint.opening import open_checkpoint
from mergepipe.errors import MergePipeError, NonFiniteError, UsageError
from mergepipe.index.groups import gather, group_cost
from mergepipe.index.model import Pair, WantedGroup
from mergepipe.plan.compose import compose_models
from mergepipe.plan.family import FamilyRules, align
from mergepipe.plan.pairs import index_pairs
from mergepipe.stats.contract import GramNeed, VectorGramNeed
from mergepipe.store.contract import Purpose
from mergepipe.store.meter import Meter
from mergepipe.testing.checkpoints import write_checkpoint

SHAPES = {"w": (300, 257), "v": (70_001,), "s": (), "long": (2, 70_000)}
CODES = [("BF16", "F32", "F64"), ("F32", "F16", "BF16")]


def pairs_of(folder: Path, codes: tuple[str, ...]) -> tuple[list[Pair], dict[str, np.ndarray[Any, Any]]]:
    """Base and two experts; per tensor the exact matrix of (θ₀, δ₁, δ₂) as rows in float64."""
    draw = np.random.default_rng(7)
    stacks: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in SHAPES}
    for number, code in enumerate(codes):
        tensors = {
            name: (code, draw.normal(0, 1, shape).astype(np.float16).astype(np.float32))
            for name, shape in SHAPES.items()
        }
        tensors = {
            name: (code, (np.round(values * 16) / 16).astype(np.float32)) for name, (code, values) in tensors.items()
        }
        write_checkpoint(folder / str(number), tensors, {})
        for name, (_, values) in tensors.items():
            kind = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}[code]
            stacks[name].append(np.asarray(values).astype(kind).astype(np.float64).ravel())
    opened = [open_checkpoint(str(folder / str(n)), Meter()) for n in range(3)]
    composition = compose_models(align(opened[0], opened[1:], FamilyRules()), {}, None, [{}, {}])
    rows = {n: np.stack([s[0], s[1] - s[0], s[2] - s[0]]) for n, s in stacks.items()}
    return index_pairs(composition, 1 << 20), rows


@pytest.mark.parametrize("codes", CODES)
def test_inner_products_are_the_plain_ones(tmp_path: Path, codes: tuple[str, ...]) -> None:
    """Of whole tensors, of rows and of columns; every byte is charged to INDEX and announced."""
    pairs, rows = pairs_of(tmp_path, codes)
    wanted = [WantedGroup((0, 1), name, GramNeed()) for name in SHAPES]
    wanted += [WantedGroup((0, 1), name, VectorGramNeed(axis)) for name in ("w", "long") for axis in (-1, 0)]
    meter = Meter()
    found = gather(pairs, wanted, None, meter, 512 << 20, 2)
    assert meter.spent().bytes[Purpose.INDEX] == found.index_bytes == group_cost(pairs, wanted, None, 512 << 20, 2)
    for each, fact in found.group_facts.items():
        stack = rows[each.tensor]
        vectors = stack[:, None, :]
        if isinstance(each.need, VectorGramNeed):
            shape = SHAPES[each.tensor]
            whole = stack.reshape(3, *shape)
            vectors = whole if each.need.axis == -1 else whole.transpose(0, 2, 1)
        expected = np.einsum("avn,bvn->vab", vectors, vectors).ravel()
        np.testing.assert_allclose(fact["gram"], expected, rtol=1e-9, atol=1e-9)


def test_reading_can_be_forbidden(tmp_path: Path) -> None:
    """`--no-index-reads` names what would have been read."""
    pairs, _ = pairs_of(tmp_path, CODES[0])
    with pytest.raises(UsageError, match="--no-index-reads"):
        gather(pairs, [WantedGroup((0, 1), "w", GramNeed())], None, Meter(), 512 << 20, 2, None, False)


def test_values_without_inner_products_are_named(tmp_path: Path) -> None:
    """NaN in a tensor stops the run before anything is merged."""
    values = np.ones((4, 4), np.float32)
    write_checkpoint(tmp_path / "base", {"w": ("F32", values)}, {})
    write_checkpoint(tmp_path / "odd", {"w": ("F32", np.full((4, 4), np.nan))}, {})
    recipe = tmp_path / "r.yml"
    recipe.write_text(
        json.dumps(
            {
                "merge_method": "slerp",
                "base_model": str(tmp_path / "base"),
                "models": [{"model": str(tmp_path / "odd")}],
                "parameters": {"t": 0.5},
            }
        )
    )
    with pytest.raises(MergePipeError, match="w: holds NaN") as caught:
        api.merge(recipe, tmp_path / "out", index=api.IndexOptions(tmp_path / "index"))
    assert isinstance(caught.value, NonFiniteError)
