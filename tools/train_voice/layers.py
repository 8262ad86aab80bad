"""The transformer blocks of VoxCPM2 as training wants them: packed rows, and attention weights that a loss can see.

Parameter names are the reference checkpoint's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 32


@dataclass(frozen=True)
class StackShape:
    """Size of one transformer: every head has HEAD_DIM channels."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int = 4
    rope: bool = True


class RMSNorm(nn.Module):
    """Root-mean-square norm, in float32."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, 1e-6)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, halves as pairs."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    """Grouped-query attention over [rows, slots, hidden]; `bias` [rows, 1, slots, keys] is zero or minus infinity."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(shape.heads * HEAD_DIM, shape.hidden, bias=False)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [rows, heads, slots, HEAD_DIM]."""
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        weight = torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight))
        packed = F.linear(x, weight).unflatten(-1, (sum(sizes), HEAD_DIM)).transpose(1, 2)
        q, k, v = packed.split(sizes, 1)
        return (q, k, v) if rope is None else (rotate(q, *rope), rotate(k, *rope), v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output [rows, slots, hidden] and the scores of head 0 [rows, slots, keys]."""
        rows, _, slots, _ = q.shape
        grouped = q.reshape(rows, self.kv_heads, -1, HEAD_DIM)  # heads of a group share keys: fold them into the slots
        scores = (grouped @ k.transpose(2, 3)).float().reshape(rows, self.heads, slots, -1) / math.sqrt(HEAD_DIM)
        if bias is not None:
            scores = scores + bias
        weights = scores.softmax(-1).reshape(rows, self.kv_heads, -1, scores.shape[-1])
        mixed = (weights.to(v.dtype) @ v).reshape(rows, self.heads, slots, HEAD_DIM)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), scores[:, 0]


class Layer(nn.Module):
    """Pre-norm attention and gated MLP."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(shape.hidden, shape.ffn, bias=False),
                "up_proj": nn.Linear(shape.hidden, shape.ffn, bias=False),
                "down_proj": nn.Linear(shape.ffn, shape.hidden, bias=False),
            }
        )
        self.input_layernorm = RMSNorm(shape.hidden)
        self.post_attention_layernorm = RMSNorm(shape.hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output, and the scores of head 0."""
        mixed, scores = self.self_attn.attend(*self.self_attn.project(self.input_layernorm(x), rope), bias)
        return self.feed(x + mixed), scores

    def feed(self, x: Tensor) -> Tensor:
        """The MLP half."""
        mlp = self.mlp
        weight = torch.cat((mlp["gate_proj"].weight, mlp["up_proj"].weight))
        gate, up = F.linear(self.post_attention_layernorm(x), weight).chunk(2, -1)
        return x + mlp["down_proj"](F.silu(gate) * up)


class Stack(nn.Module):
    """A transformer over embeddings, with RoPE or without."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: StackShape, longest: int = 2048) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden)
        frequencies = 1.0 / (10_000.0 ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
        angles = torch.outer(torch.arange(longest).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines [..., 1, slots, HEAD_DIM] for integer positions [..., slots]."""
        return (self.cos[positions].unsqueeze(-3), self.sin[positions].unsqueeze(-3)) if self.shape.rope else None

    def forward(self, x: Tensor, positions: Tensor, bias: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Normed output, and head 0's scores of every layer."""
        rope, seen = self.rope(positions), []
        for layer in self.layers:
            x, scores = layer(x, rope, bias)
            seen.append(scores)
        return self.norm(x), seen

    def extend(self, x: Tensor, positions: Tensor, bias: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """As forward, for new slots whose keys and values go to `cache` [rows, kv heads, longest, HEAD_DIM] at `positions`."""
        rope = self.rope(positions)
        rows = torch.arange(len(x))[:, None]
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), rope)
            keys[rows, :, positions] = k.transpose(1, 2)
            values[rows, :, positions] = v.transpose(1, 2)
            x = layer.feed(x + layer.self_attn.attend(q, keys, values, bias)[0])
        return self.norm(x)

    def new_cache(self, rows: int, longest: int) -> list[tuple[Tensor, Tensor]]:
        """Empty keys and values for `extend`."""
        size = (rows, self.shape.kv_heads, longest, HEAD_DIM)
        return [(torch.zeros(size), torch.zeros(size)) for _ in self.layers]
