"""The paged cache and its plain reader: scaled dot-product attention over gathered blocks.

This is the CPU path and the oracle of the GPU kernels; `AttentionMetadata` says what the batch is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evervox.layers.attention import dense_attention

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
    """Spans of one length that attend together: `queries` `[spans, length]` rows of the packed batch, None for all in order.

    `slots` int64 `[spans, keys]` flat slots of their contexts (past a context's end its first slot again: what is not seen must
    still be finite), and `seen` bool `[spans, 1, length, keys]`, None where everything is.
    """

    length: int
    queries: Tensor | None
    slots: Tensor
    seen: Tensor | None


class SdpaAttend:
    """`Attend` over a paged cache. Built once per step, shared by all layers of both stacks through `over`."""

    def __init__(self, metadata: AttentionMetadata, block_size: int) -> None:
        self.metadata = metadata
        self.block_size = block_size
        self._contexts: list[int] = metadata.context_lens.tolist()
        self.gathers = [self._gather(length, spans) for length, spans in self._groups().items()]

    def over(self, cache: PagedCache) -> CachedAttend:
        return CachedAttend(cache, self)

    def _groups(self) -> dict[int, list[int]]:
        """Spans by their length: all decodes in one group, so that a step has few calls."""
        starts = self.metadata.span_starts.tolist()
        groups: dict[int, list[int]] = {}
        for span, context in enumerate(self._contexts):
            if context:
                groups.setdefault(starts[span + 1] - starts[span], []).append(span)
        return groups

    def _gather(self, length: int, spans: list[int]) -> Gather:
        picked = torch.tensor(spans, device=self.metadata.slot_mapping.device)
        query = torch.arange(length, device=picked.device)
        queries = None
        if len(spans) * length < len(self.metadata.slot_mapping):
            queries = self.metadata.span_starts[picked].long()[:, None] + query
        contexts = [self._contexts[span] for span in spans]
        slots = self._slots(picked, max(contexts))
        if length == 1 and min(contexts) == max(contexts):
            return Gather(length, queries, slots, None)
        ends = self.metadata.context_lens[picked].long()[:, None]
        keys = torch.arange(slots.shape[1], device=picked.device)
        seen = keys <= (ends - length + query)[:, :, None]
        return Gather(length, queries, torch.where(keys < ends, slots, slots[:, :1]), seen.unsqueeze(1))

    def _slots(self, picked: Tensor, count: int) -> Tensor:
        """The first `count` slots of the spans `picked`, `[spans, count]`."""
        tables = self.metadata.block_tables[picked, : -(-count // self.block_size)].long()
        within = torch.arange(self.block_size, device=picked.device)
        return (tables.unsqueeze(-1) * self.block_size + within).flatten(1)[:, :count]


@dataclass(frozen=True, slots=True)
class CachedAttend:
    """One stack's cache seen through one step's metadata."""

    cache: PagedCache
    step: SdpaAttend

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` `[N, heads, head_dim]`, `k`, `v` `[N, kv_heads, head_dim]`."""
        self.cache.store(layer, self.step.metadata.slot_mapping, k, v)
        keys, values = self.cache.keys[layer].flatten(0, 1), self.cache.values[layer].flatten(0, 1)
        out = None
        for part in self.step.gathers:
            context = (keys[part.slots], values[part.slots])
            if part.queries is None:
                return dense_attention(q.view(-1, part.length, *q.shape[1:]), *context, part.seen).flatten(0, 1)
            out = torch.zeros_like(q) if out is None else out
            out[part.queries] = dense_attention(q[part.queries], *context, part.seen)
        return torch.zeros_like(q) if out is None else out
