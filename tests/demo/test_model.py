"""The demo's Llama against transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from mergepipe.demo.folder import read_model, write_model
from mergepipe.demo.model import Llama, initialise
from mergepipe.demo.settings import ModelShape
from mergepipe.demo.train import load, weights_of

SHAPES = {
    "grouped": ModelShape(layers=2, hidden=48, heads=6, kv_heads=2, intermediate=40, context=32),
    "one kv head": ModelShape(layers=1, hidden=32, heads=4, kv_heads=1, intermediate=24, context=32),
    "not grouped": ModelShape(layers=3, hidden=24, heads=2, kv_heads=2, intermediate=16, context=32, rope_theta=500.0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """A saved model, loaded by transformers, gives the logits that ours gives with the same stored weights."""
    shape = SHAPES[name]
    model = Llama(shape)
    initialise(model, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))  # norms that do something
    write_model(tmp_path / "model", weights_of(model), shape)
    load(model, read_model(tmp_path / "model"))
    theirs, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = torch.randint(shape.vocabulary, (2, shape.context), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_a_token_does_not_see_the_next() -> None:
    """Logits at a position depend on what stands before it only."""
    model = Llama(SHAPES["grouped"])
    initialise(model, 3)
    tokens = torch.arange(20)[None]
    changed = tokens.clone()
    changed[0, 12:] += 50
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


def test_initial_weights_depend_on_the_seed_only() -> None:
    """The same seed gives the same weights, another one others."""
    first, same, other = (Llama(SHAPES["grouped"]) for _ in range(3))
    for model, seed in ((first, 0), (same, 0), (other, 1)):
        initialise(model, seed)
    matrices = [name for name, parameter in first.named_parameters() if parameter.dim() > 1]
    for name in matrices:
        assert torch.equal(first.state_dict()[name], same.state_dict()[name])
        assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
