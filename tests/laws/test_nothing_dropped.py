"""Invariant 8: every tensor of the base is in the output; what differs is said by name or stops the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mergepipe import api
from mergepipe.errors import IncompatibleModels, MergePipeError, NonFiniteError, UnsupportedInput
from mergepipe.testing.checkpoints import fine_tune, llama_config, read_tensors, tiny_llama, typed, write_checkpoint

WEIGHTS = tiny_llama(3, hidden=16, vocab=64)
CONFIG = llama_config(hidden=16, vocab=64)
Q = "model.layers.1.self_attn.q_proj.weight"


def family(folder: Path, changes: dict[str, Any], config: dict[str, Any] | None = None) -> Path:
    """A recipe over a base and two experts, the second of which is `changes` away from a fine-tune (None: absent)."""
    base = dict(typed(WEIGHTS, "BF16"))
    base["model.steps"] = ("I64", np.array([7], np.int64))
    expert = dict(typed(fine_tune(WEIGHTS, 5), "BF16"))
    expert["model.steps"] = ("I64", np.array([9], np.int64))
    odd = {name: value for name, value in (expert | changes).items() if value is not None}
    write_checkpoint(folder / "base", base, CONFIG)
    write_checkpoint(folder / "plain", expert, CONFIG)
    write_checkpoint(folder / "odd", odd, config or CONFIG)
    models = [{"model": str(folder / name), "parameters": {"weight": 0.5}} for name in ("plain", "odd")]
    recipe = folder / "recipe.yml"
    recipe.write_text(
        json.dumps({"merge_method": "task_arithmetic", "base_model": str(folder / "base"), "models": models})
    )
    return recipe


def merge(recipe: Path, **options: Any) -> dict[str, Any]:
    """Merge into `OUT` beside the recipe."""
    index = api.IndexOptions(recipe.parent / "index")
    return dict(api.merge(recipe, recipe.parent / "OUT", api.PlanOptions(block_bytes=128, **options), index))


def test_the_output_has_exactly_the_bases_tensors(tmp_path: Path) -> None:
    """Buffers are copied, an expert's own tensors are left out, and both are said."""
    extra = ("BF16", np.zeros((2, 2), np.float32))
    result = merge(family(tmp_path, {"model.extra.weight": extra}))
    made, base = read_tensors(tmp_path / "OUT"), read_tensors(tmp_path / "base")
    assert {name: (code, shape) for name, (code, _, shape) in made.items()} == {
        name: (code, shape) for name, (code, _, shape) in base.items()
    }
    assert made["model.steps"] == base["model.steps"]
    said = "\n".join(result["notes"])
    assert "model.extra.weight" in said
    assert "model.steps holds other values" in said


@pytest.mark.parametrize("budget", [None, "50%"])
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({Q: None}, IncompatibleModels, Q),
        ({Q: ("BF16", np.zeros((16, 8), np.float32))}, IncompatibleModels, Q),
        ({Q: ("I8", np.zeros((16, 16), np.int8))}, MergePipeError, Q),
        ({"model.embed_tokens.weight": ("BF16", np.zeros((60, 16), np.float32))}, IncompatibleModels, "--vocab common"),
        ({Q: ("F32", np.full((16, 16), np.nan))}, NonFiniteError, Q),
        ({f"{Q}_scale_inv": ("F32", np.ones(1))}, UnsupportedInput, "scale"),
    ],
)
def test_what_cannot_be_merged_stops_the_run_by_name(
    tmp_path: Path, budget: str | None, changes: dict[str, Any], error: type[MergePipeError], words: str
) -> None:
    """The error names the expert and the tensor; nothing is published."""
    recipe = family(tmp_path, changes)
    with pytest.raises(error, match="odd") as caught:
        merge(recipe, budget=budget)
    assert words in str(caught.value)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "OUT").exists()


def test_other_architectures_stop_the_run(tmp_path: Path) -> None:
    """Models of different architectures share no coordinate system."""
    recipe = family(tmp_path, {}, {**CONFIG, "architectures": ["MistralForCausalLM"]})
    with pytest.raises(IncompatibleModels, match="MistralForCausalLM"):
        merge(recipe)


@pytest.mark.parametrize("budget", [None, "50%"])
def test_non_finite_values_pass_only_if_allowed(tmp_path: Path, budget: str | None) -> None:
    """`--allow-nonfinite` goes on, and no bound is claimed."""
    values = np.ones((16, 16), np.float32)
    values[3, 3] = np.inf
    result = merge(family(tmp_path, {Q: ("F32", values)}), budget=budget, allow_nonfinite=True)
    assert result["bound"]["kind"] == "none"
    assert result["bound"]["reason"]
