"""`Attend` over the paged cache by our kernels: what `layers.paged.SdpaAttend` gives, but no value is looked at on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evervox.kernels.kv_store import kv_store
from evervox.kernels.paged_attention import paged_attention

if TYPE_CHECKING:
    from torch import Tensor

    from evervox.layers.attention_metadata import AttentionMetadata
    from evervox.layers.paged import PagedCache


@dataclass(frozen=True, slots=True)
class KernelAttend:
    """One step's metadata."""

    metadata: AttentionMetadata

    def over(self, cache: PagedCache) -> CachedKernelAttend:
        return CachedKernelAttend(cache, self.metadata)


@dataclass(frozen=True, slots=True)
class CachedKernelAttend:
    """One stack's cache seen through one step's metadata."""

    cache: PagedCache
    metadata: AttentionMetadata

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q` `[N, heads, head_dim]`, `k`, `v` `[N, kv_heads, head_dim]`."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        kv_store(k, v, keys, values, self.metadata.slot_mapping)
        return paged_attention(q, keys, values, self.metadata)
