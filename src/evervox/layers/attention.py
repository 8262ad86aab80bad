"""Attention as one module and one seam: where keys and values live is the `Attend` that is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from evervox.layers.rope import RopeAngles, rotate

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import TransformerConfig


class Attend(Protocol):
    """Stores this step's keys and values for one layer and attends over all that the queries may see."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` `[..., slots, heads, head_dim]`, `k`, `v` `[..., slots, kv_heads, head_dim]` -> like `q`."""


class Attention(nn.Module):
    """Grouped-query attention with fused q, k, v."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(config.hidden, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, angles: RopeAngles | None, attend: Attend, wanted: slice | None = None) -> Tensor:
        """`x` `[..., slots, hidden]`; `angles` None where the stack encodes no positions. `wanted`: the slots to return."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        positioned, v = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=-2)
        if angles is not None:
            positioned = rotate(positioned, angles)
        q, k = positioned.split((self.heads, self.kv_heads), dim=-2)
        if wanted is not None:
            q = q[..., wanted, :, :]
        out: Tensor = self.out(attend(self.layer, q, k, v).flatten(-2))
        return out


def attend_within(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every slot of a row sees every slot of that row; nothing is kept. Shapes `[rows, slots, heads, head_dim]`."""
    return dense_attention(q, k, v)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """SDPA with slots before heads: `q` `[rows, queries, heads, dim]`, `k`, `v` `[rows, keys, kv_heads, dim]`. mask: seen."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


class ContiguousKV:
    """Keys and values of one sequence, `[layers, 1, max_slots, kv_heads, head_dim]` each: the slow twin of the paged cache."""

    def __init__(self, config: TransformerConfig, max_slots: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.layers, 1, max_slots, config.kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.start = 0

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` `[slots, heads, dim]`: the slots `[start, start + slots)`; see everything up to themselves."""
        stop = self.start + q.shape[0]
        self.keys[layer, 0, self.start : stop] = k
        self.values[layer, 0, self.start : stop] = v
        seen = torch.arange(stop, device=q.device) <= torch.arange(self.start, stop, device=q.device)[:, None]
        keys, values = self.keys[layer, :, :stop], self.values[layer, :, :stop]
        return dense_attention(q[None], keys, values, seen)[0]
