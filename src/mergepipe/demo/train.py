"""Trains the demo's family: a base on all domains, then a full fine-tune for each of them.

    python -m mergepipe.demo.train FOLDER SETTINGS

writes `FOLDER/base`, a model for each domain, and last `FOLDER/demo.json`. SETTINGS is JSON. One line a stage is
printed to stdout. The result depends on the settings, the versions of Python and torch, and the CPU.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from mergepipe.demo.family import MARKER, marker
from mergepipe.demo.folder import Weights, read_model, write_model
from mergepipe.demo.model import Llama, initialise
from mergepipe.demo.settings import DemoSettings
from mergepipe.demo.text import domains
from mergepipe.demo.tokenizer import tokens_of

_THREADS = 2  # fixed: sums over threads depend on their number
_WARM_UP = 20  # steps
_RECENT = 20  # steps whose mean loss is told


def train_family(folder: Path, settings: DemoSettings, say: Callable[[str], None]) -> None:
    """Train base and experts and write them into `folder`, which must not hold them yet."""
    torch.set_num_threads(_THREADS)
    torch.use_deterministic_algorithms(True)
    found = domains()
    texts = [torch.from_numpy(tokens_of(domain.train)) for domain in found]
    model = Llama(settings.shape)
    initialise(model, settings.seed)
    base = folder / "base"
    _train(model, texts, settings, settings.base_steps, settings.base_rate, stage=0, name="base", say=say)
    write_model(base, weights_of(model), settings.shape)
    for stage, (domain, text) in enumerate(zip(found, texts, strict=True), 1):
        load(model, read_model(base))  # as it is stored: what the fine-tune departs from
        _train(model, [text], settings, settings.expert_steps, settings.expert_rate, stage, domain.name, say)
        write_model(folder / domain.name, weights_of(model), settings.shape)
    (folder / MARKER).write_text(json.dumps(marker(settings), indent=2) + "\n")


def load(model: Llama, weights: dict[str, NDArray[np.float32]]) -> None:
    """Give the model other weights, by name."""
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})


def weights_of(model: Llama) -> Weights:
    """The model's weights by name, in the order of names."""
    return {name: values.detach().numpy() for name, values in sorted(model.state_dict().items())}


def loss_of(model: Llama, windows: Tensor) -> Tensor:
    """Mean cross-entropy, in nats a token, of each window's tokens after its first."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def _train(
    model: Llama,
    texts: Sequence[Tensor],
    settings: DemoSettings,
    steps: int,
    rate: float,
    stage: int,
    name: str,
    say: Callable[[str], None],
) -> None:
    """AdamW, with a warm-up and then a half cosine; each step sees every text equally often."""
    started = perf_counter()
    generator = torch.Generator().manual_seed(1000 * settings.seed + stage)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share(step, steps))
    recent: deque[float] = deque(maxlen=_RECENT)
    for _ in range(steps):
        rows = settings.batch // len(texts)
        windows = torch.cat([_draw(text, rows, settings.shape.context, generator) for text in texts])
        loss = loss_of(model, windows)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        recent.append(float(loss.detach()))
    took = perf_counter() - started
    say(f"trained {name}: {steps} steps in {took:.0f} s, loss {fmean(recent):.2f} nats per byte")


def _share(step: int, steps: int) -> float:
    warm = min(_WARM_UP, max(1, steps // 4))
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def _draw(text: Tensor, rows: int, context: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - context, (rows, 1), generator=generator)
    return text[starts + torch.arange(context + 1)]


def _to_stdout(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    train_family(Path(sys.argv[1]), DemoSettings.from_json(sys.argv[2]), _to_stdout)
