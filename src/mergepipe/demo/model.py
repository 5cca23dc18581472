"""A Llama in plain torch: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embeddings.

Parameters have the names that Hugging Face's Llama gives them, and the logits are its logits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mergepipe.demo.settings import ModelShape


class RmsNorm(nn.Module):
    """`x / rms(x) · weight`, over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):
    """Causal attention; several query heads share one key and value head."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """`x` is [batch, position, hidden]; `cosines`, `sines` are [position, head_dim]."""
        shape = self.shape
        shared = shape.heads // shape.kv_heads
        q = rotate(self._heads(self.q_proj(x), shape.heads), cosines, sines)
        k = rotate(self._heads(self.k_proj(x), shape.kv_heads), cosines, sines).repeat_interleave(shared, 1)
        v = self._heads(self.v_proj(x), shape.kv_heads).repeat_interleave(shared, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self.shape.head_dim).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and MLP, each on the normed stream and added to it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.epsilon)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Stack(nn.Module):
    """Embedding, layers, last norm: tokens [batch, position] → [batch, position, hidden]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden, shape.epsilon)

    def forward(self, tokens: Tensor) -> Tensor:
        cosines, sines = rotations(tokens.shape[-1], self.shape)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cosines, sines)
        out: Tensor = self.norm(x)
        return out


class Llama(nn.Module):
    """Tokens [batch, position] → logits [batch, position, vocabulary]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.model = Stack(shape)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.model(tokens) @ self.model.embed_tokens.weight.T
        return out


def rotations(positions: int, shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position's angles, [position, head_dim]; the second half repeats the first."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim/2) of [batch, head, position, head_dim] by its position's angle."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


def initialise(model: Llama, seed: int) -> None:
    """Normal weights: 0.1 for the embedding, else 1/√(inputs), less where a layer writes to the stream; norms are one.

    Wider than the usual 0.02, so that a training of a few hundred steps gets somewhere.
    """
    generator = torch.Generator().manual_seed(seed)
    writers = 2 * model.model.shape.layers
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            spread: float = 0.1 if "embed_tokens" in name else parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                spread /= writers**0.5
            nn.init.normal_(parameter, std=spread, generator=generator)
