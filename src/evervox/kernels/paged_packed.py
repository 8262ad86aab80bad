"""Attention of packed spans of two or more slots: each program serves some queries of one span over its whole context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from evervox.kernels.paged_keys import attend_keys, normalise

if TYPE_CHECKING:
    from torch import Tensor

    from evervox.kernels.tiling import Tiling
    from evervox.layers.attention_metadata import AttentionMetadata


@triton.jit
def _find_span(span_starts, num_spans, tile, BLOCK_Q: tl.constexpr):
    """The span of query tile `tile`, where span `r` owns the tiles from `span_starts[r] // BLOCK_Q + r` on."""
    low = tile * 0
    high = low + num_spans
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(span_starts + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit(do_not_specialize=["num_slots", "num_spans"])
def _packed(
    out,
    query,
    keys,
    values,
    block_tables,
    span_starts,
    context_lens,
    scale,
    query_stride,
    table_stride,
    num_slots,
    num_spans,
    GROUP: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: `BLOCK_Q` queries of one span times the `GROUP` heads that share a KV head. What is past the last span
    counts as a span without context, of any length; a real span of one slot is `_decode`'s."""
    KV_HEADS: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    tile, head = tl.program_id(0), tl.program_id(1)
    span = _find_span(span_starts, num_spans, tile, BLOCK_Q)
    real = span < num_spans
    begin = tl.load(span_starts + span)
    length = tl.load(span_starts + span + 1, mask=real, other=num_slots) - begin
    first = (tile - begin // BLOCK_Q - span) * BLOCK_Q
    if (first < length) & ((length > 1) | (span == num_spans)):
        context = tl.load(context_lens + span, mask=real, other=0)
        row = tl.arange(0, BLOCK_M)
        index = first + row // GROUP
        inside = (row < BLOCK_Q * GROUP) & (index < length)
        heads = head * GROUP + row % GROUP
        slot = (begin + index).to(tl.int64)
        dims = tl.arange(0, D)
        q = tl.load(query + (slot * query_stride + heads * D)[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
        position = context - length + index
        stop = tl.minimum(context, context - length + tl.minimum(first + BLOCK_Q, length))
        table = block_tables + span.to(tl.int64) * table_stride
        acc, _, total = attend_keys(q, position, keys, values, table, 0, stop, head, scale, SHAPE, TILE)
        target = out + ((slot * KV_HEADS * GROUP + heads) * D)[:, None] + dims[None, :]
        tl.store(target, normalise(acc, total).to(out.dtype.element_ty), mask=inside[:, None])


def attend_packed(out: Tensor, query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata, plan: Tiling) -> None:
    """Fill `out` except at the spans of one slot, which `attend_rows` serves."""
    slots, spans = len(query), metadata.num_spans
    _packed[(slots // plan.block_q + spans + 1, keys.shape[2])](
        out,
        query,
        keys,
        values,
        metadata.block_tables,
        metadata.span_starts,
        metadata.context_lens,
        plan.scale,
        query.stride(0),
        metadata.block_tables.stride(0),
        slots,
        spans,
        GROUP=plan.group,
        BLOCK_Q=plan.block_q,
        BLOCK_M=plan.block_m,
        SHAPE=tuple(keys.shape[1:]),
        TILE=plan.tile,
    )
