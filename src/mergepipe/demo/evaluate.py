"""Held-out loss of the demo's models.

    python -m mergepipe.demo.evaluate SETTINGS MODEL...

prints one JSON object: for each model directory, nats per byte for each domain. SETTINGS is JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from mergepipe.demo.folder import read_model
from mergepipe.demo.model import Llama
from mergepipe.demo.settings import DemoSettings
from mergepipe.demo.text import domains
from mergepipe.demo.tokenizer import tokens_of
from mergepipe.demo.train import load, loss_of

_AT_ONCE: Final = 64  # windows


def evaluate(models: Sequence[Path], settings: DemoSettings) -> dict[str, dict[str, float]]:
    """Loss by model directory and domain, over windows spread evenly over the held-out text."""
    held_out = {domain.name: _windows(domain.held_out, settings) for domain in domains()}
    model = Llama(settings.shape)
    found = {}
    for folder in models:
        load(model, read_model(folder))
        found[str(folder)] = {name: _loss(model, windows) for name, windows in held_out.items()}
    return found


def _windows(documents: Sequence[bytes], settings: DemoSettings) -> torch.Tensor:
    tokens = torch.from_numpy(tokens_of(documents))
    starts = torch.linspace(0, len(tokens) - settings.shape.context - 1, settings.windows, dtype=torch.float64).long()
    return tokens[starts[:, None] + torch.arange(settings.shape.context + 1)]


@torch.inference_mode()
def _loss(model: Llama, windows: torch.Tensor) -> float:
    parts = [windows[start : start + _AT_ONCE] for start in range(0, len(windows), _AT_ONCE)]
    return sum(float(loss_of(model, part)) * len(part) for part in parts) / len(windows)


if __name__ == "__main__":
    losses = evaluate([Path(word) for word in sys.argv[2:]], DemoSettings.from_json(sys.argv[1]))
    sys.stdout.write(json.dumps(losses) + "\n")
