"""checkpoint/weightfiles.py: files told apart by name."""

from __future__ import annotations

import pytest

from mergepipe.checkpoint.weightfiles import is_adapter_file, is_training_state, is_weight_file, is_weight_index


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("model.safetensors", {"weight"}),
        ("original/consolidated.00.pth", {"weight"}),
        ("Model-Q8_0.GGUF", {"weight"}),
        ("model.safetensors.index.json", {"index"}),
        ("pytorch_model.bin.index.json", {"index"}),
        ("adapter_model.safetensors", {"weight", "adapter"}),
        ("lora/adapter_config.json", {"adapter"}),
        ("training_args.bin", {"weight", "training"}),
        ("checkpoint-5/optimizer.pt", {"weight", "training"}),
        ("rng_state_0.pth", {"weight", "training"}),
        ("tokenizer.model", set()),
        ("tokenizer.json", set()),
        ("vocabulary.index.json", set()),
        ("scheduler/scheduler_config.json", set()),
    ],
)
def test_kinds_by_name(key: str, kinds: set[str]) -> None:
    """Weights, their indexes, adapters and training state, at any depth and in any case of letters."""
    tests = {
        "weight": is_weight_file,
        "index": is_weight_index,
        "adapter": is_adapter_file,
        "training": is_training_state,
    }
    assert {kind for kind, test in tests.items() if test(key)} == kinds
