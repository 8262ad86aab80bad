"""What paged attention must know about a packed batch. One object for the kernels and for their SDPA twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NULL_BLOCK = 0
"""The block that padding writes into. No table of a live span holds it, and nobody reads it."""


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """`N` packed slots of `R` spans, on one device. Query `i` of span `r` attends keys `[0, context_len - length + i + 1)`.

    `slot_mapping` int64 `[N]`: where each new key and value goes, `block * block_size + offset`; padding slots point into
    `NULL_BLOCK`. `block_tables` int32 `[R, max_blocks]`: only the entries that cover the context are read. `span_starts` int32
    `[R + 1]`: cumulative span lengths. `context_lens` int32 `[R]`: keys of each span, this step's included.

    Padding: slots at or past `span_starts[R]` belong to no span; a span with `context_len` 0 attends nothing. Both give zeros.
    `max_query`: an upper bound of the span lengths, known on the host. When it is 1 the batch is a decode: `N == R` and row `r`
    is span `r`, padding rows included.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    span_starts: Tensor
    context_lens: Tensor
    max_query: int

    @property
    def num_spans(self) -> int:
        return self.context_lens.shape[0]

    @property
    def is_decode(self) -> bool:
        return self.max_query == 1
