"""Attention over a paged KV pool: spans of one slot by one kernel, which splits long contexts, the others by another.

All lengths and block ids are read on the device, and every grid follows from shapes alone, so a CUDA graph records a call. The
twin is `layers.attention`'s gather and SDPA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from evervox.kernels.paged_decode import attend_rows
from evervox.kernels.paged_packed import attend_packed
from evervox.kernels.tiling import tiling

if TYPE_CHECKING:
    from torch import Tensor

    from evervox.layers.attention_metadata import AttentionMetadata

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def supports(dtype: torch.dtype, head_dim: int) -> bool:
    """Are there kernels for this? Otherwise the twin serves."""
    return dtype in _DTYPES and 16 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
    """`query` `[N, heads, head_dim]` over pools `[blocks, block_size, kv_heads, head_dim]` -> `[N, heads, head_dim]`.

    The new keys and values must be in the pool already (`kv_store`). Scores are scaled by `head_dim ** -0.5`, summed in float32.
    """
    _check(query, keys, values, metadata)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if not len(query):
        return out
    plan = tiling(query, keys, metadata)
    if not metadata.is_decode:
        attend_packed(out, query, keys, values, metadata, plan)
    if metadata.num_spans:
        attend_rows(out, query, keys, values, metadata, plan)
    return out


def _check(query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> None:
    if not supports(query.dtype, query.shape[2]):
        raise ValueError(f"query: no kernel for {query.dtype} and head_dim {query.shape[2]}")
    if not (keys.is_contiguous() and values.is_contiguous() and query.stride()[1:] == (query.shape[2], 1)):
        raise ValueError("query, keys, values: heads and pools must be contiguous")
    if query.shape[1] % keys.shape[2]:
        raise ValueError(f"query: {query.shape[1]} heads are no multiple of {keys.shape[2]} KV heads")
    if metadata.is_decode and len(query) != metadata.num_spans:
        raise ValueError(f"metadata: a decode of {metadata.num_spans} spans has {len(query)} slots")
