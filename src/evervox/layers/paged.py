"""The paged cache and its plain reader: scaled dot-product attention over gathered blocks.

This is the CPU path and the oracle of the GPU kernels; `AttentionMetadata` says what the batch is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from evervox.layers.attention_metadata import AttentionMetadata
    from evervox.models.voxcpm.config import TransformerConfig


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of one stack: `[layers, blocks, block_size, kv_heads, head_dim]` each."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(
        cls, config: TransformerConfig, blocks: int, block_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> PagedCache:
        shape = (config.layers, blocks, block_size, config.kv_heads, config.head_dim)
        return cls(torch.zeros(shape, device=device, dtype=dtype), torch.zeros(shape, device=device, dtype=dtype))

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put `[N, kv_heads, head_dim]` at flat slots int64 `[N]`."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, k)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, v)


@dataclass(frozen=True, slots=True)
class Gather:
    """Spans of one length that attend together: `queries` `[spans, length]` rows of the packed batch.

    `slots` int64 `[spans, keys]` flat slots of their contexts (past a context's end its first slot again: what is not seen must
    still be finite), and `seen` bool `[spans, 1, length, keys]`.
    """

    queries: Tensor
    slots: Tensor
    seen: Tensor


class SdpaAttend:
    """`Attend` over a paged cache. Built once per step, shared by all layers of both stacks through `over`."""

    def __init__(self, metadata: AttentionMetadata, block_size: int) -> None:
        self.metadata = metadata
        self.block_size = block_size
        self.gathers = [self._gather(spans) for spans in self._groups()]

    def over(self, cache: PagedCache) -> CachedAttend:
        return CachedAttend(cache, self)

    def _groups(self) -> list[list[int]]:
        """Spans by their length: all decodes in one group, so that a step has few calls."""
        starts = self.metadata.span_starts.tolist()
        groups: dict[int, list[int]] = {}
        for span, context in enumerate(self.metadata.context_lens.tolist()):
            if context:
                groups.setdefault(starts[span + 1] - starts[span], []).append(span)
        return list(groups.values())

    def _gather(self, spans: list[int]) -> Gather:
        meta, picked = self.metadata, torch.tensor(spans, device=self.metadata.slot_mapping.device)
        starts, contexts = meta.span_starts[picked].long(), meta.context_lens[picked].long()
        length = int(meta.span_starts[spans[0] + 1] - meta.span_starts[spans[0]])
        keys = torch.arange(int(contexts.max()), device=picked.device)
        blocks = meta.block_tables[picked][:, keys // self.block_size].long()
        query = torch.arange(length, device=picked.device)
        last = contexts[:, None] - length + query
        seen = keys <= last[:, :, None]
        slots = blocks * self.block_size + keys % self.block_size
        slots = torch.where(keys < contexts[:, None], slots, slots[:, :1])
        return Gather(starts[:, None] + query, slots, seen.unsqueeze(1))


@dataclass(frozen=True, slots=True)
class CachedAttend:
    """One stack's cache seen through one step's metadata."""

    cache: PagedCache
    step: SdpaAttend

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` `[N, heads, head_dim]`, `k`, `v` `[N, kv_heads, head_dim]`."""
        self.cache.store(layer, self.step.metadata.slot_mapping, k, v)
        keys, values = self.cache.keys[layer].flatten(0, 1), self.cache.values[layer].flatten(0, 1)
        out = torch.zeros_like(q)
        for part in self.step.gathers:
            context = (keys[part.slots].transpose(1, 2), values[part.slots].transpose(1, 2))
            queries = q[part.queries].transpose(1, 2)
            seen = scaled_dot_product_attention(queries, *context, attn_mask=part.seen, enable_gqa=True)
            out[part.queries] = seen.transpose(1, 2)
        return out
