"""Launch constants of the attention kernels, from shapes alone: a recorded size always launches the same grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton

if TYPE_CHECKING:
    from torch import Tensor

    from evervox.layers.attention_metadata import AttentionMetadata

SPLIT_TILES = 4
"""A part of fewer tiles costs more to add up than it saves."""

_MAX_SPLITS = 32
_DECODE_PROGRAMS = 256  # about two a multiprocessor on the largest cards: more rows need fewer splits to fill one
_MIXED_PROGRAMS = 1024  # most leave at once: a step with prefill has a span for every row that there could be
_LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Tiling:
    """`group` heads share a KV head; `tile` keys are taken at a time; `scale` of the scores, for powers of 2.

    Packed spans: `block_q` queries, in `block_m` rows of a product. Spans of one slot: their heads in `rows_m` rows, their
    contexts in `splits` parts.
    """

    group: int
    tile: int
    scale: float
    block_q: int
    block_m: int
    rows_m: int
    splits: int


def tiling(query: Tensor, keys: Tensor, metadata: AttentionMetadata) -> Tiling:
    """Tile sizes keep a program's query, keys and values under 64 KB of shared memory: the least among the supported cards."""
    _, heads, dim = query.shape
    group, wide = heads // keys.shape[2], query.element_size() * dim > 256
    rows_m = max(16, triton.next_power_of_2(group))
    block_m = max(rows_m, 16 if wide else 64)
    tile = 16 if wide else 32
    programs = _DECODE_PROGRAMS if metadata.is_decode else _MIXED_PROGRAMS
    longest = metadata.block_tables.shape[1] * keys.shape[1]
    splits = min(programs // (metadata.num_spans * keys.shape[2] or 1), longest // (tile * SPLIT_TILES), _MAX_SPLITS)
    return Tiling(group, tile, dim**-0.5 * _LOG2E, block_m // group, block_m, rows_m, 1 << max(splits, 1).bit_length() - 1)
