"""How the demo's family is made: sizes of the model, length of the training, seed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from mergepipe.demo.tokenizer import VOCABULARY


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a Llama with tied embeddings."""

    layers: int = 3
    hidden: int = 192
    heads: int = 6
    kv_heads: int = 2
    intermediate: int = 512
    context: int = 64
    vocabulary: int = VOCABULARY
    epsilon: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """All that the family depends on, beside the versions of Python and torch and the kind of CPU.

    `windows` is how many stretches of `shape.context` tokens of each domain's held-out text a loss is taken over.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    seed: int = 0
    batch: int = 12
    base_steps: int = 360
    expert_steps: int = 120
    base_rate: float = 2.5e-3
    expert_rate: float = 5e-4
    windows: int = 96

    def as_object(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_object(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of `to_json`."""
        values = json.loads(text)
        return cls(**{**values, "shape": ModelShape(**values["shape"])})
