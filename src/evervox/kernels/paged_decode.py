"""Attention of spans of one slot: contexts are split among programs, then the parts are added up (Flash-Decoding)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from evervox.kernels.paged_keys import attend_keys, normalise
from evervox.kernels.tiling import SPLIT_TILES

if TYPE_CHECKING:
    from torch import Tensor

    from evervox.kernels.tiling import Tiling
    from evervox.layers.attention_metadata import AttentionMetadata


@triton.jit
def _decode(
    out,
    maxima,
    totals,
    query,
    keys,
    values,
    block_tables,
    span_starts,
    context_lens,
    scale,
    query_stride,
    table_stride,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SHAPE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT_TILES: tl.constexpr,
    MIXED: tl.constexpr,
):
    """One program: one span's heads of one KV head over one part of its context. With one split `out` is `[N, heads, D]` and
    finished; else float32 `[R, heads, SPLITS, D]`, unnormalised, beside `maxima` and `totals` `[R, heads, SPLITS]`.

    Span `r` is slot `r`, unless `MIXED`: then its slot is looked up, and nothing is done for spans of another length.
    """
    KV_HEADS: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    span, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    row = tl.arange(0, BLOCK_M)
    slot, context, inside = span, tl.load(context_lens + span), row < GROUP
    if MIXED:
        slot = tl.load(span_starts + span).to(tl.int64)
        alone = tl.load(span_starts + span + 1) == slot + 1
        context, inside = tl.where(alone, context, 0), row < tl.where(alone, GROUP, 0)
    width = tl.maximum(tl.cdiv(tl.cdiv(context, TILE), SPLITS), SPLIT_TILES) * TILE
    start = split * width
    stop = tl.minimum(start + width, context)
    heads = head * GROUP + row
    dims = tl.arange(0, D)
    q = tl.load(query + slot * query_stride + (heads * D)[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
    position = row * 0 + context
    table = block_tables + span * table_stride
    acc, maximum, total = attend_keys(q, position, keys, values, table, start, stop, head, scale, SHAPE, TILE)
    if SPLITS == 1:
        target = out + ((slot * KV_HEADS * GROUP + heads) * D)[:, None] + dims[None, :]
        tl.store(target, normalise(acc, total).to(out.dtype.element_ty), mask=inside[:, None])
    else:
        at = (span * KV_HEADS * GROUP + heads) * SPLITS + split
        tl.store(maxima + at, maximum, mask=inside)
        tl.store(totals + at, total, mask=inside)
        tl.store(out + (at * D)[:, None] + dims[None, :], acc, mask=(inside & (total > 0))[:, None])


@triton.jit
def _reduce(
    out,
    partial,
    maxima,
    totals,
    span_starts,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    MIXED: tl.constexpr,
):
    """One program: one span's head. Parts without keys have total 0 and were never written."""
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, dims = tl.arange(0, SPLITS), tl.arange(0, D)
    slot, given, wanted = span, split < SPLITS, dims < D
    if MIXED:
        slot = tl.load(span_starts + span).to(tl.int64)
        alone = tl.load(span_starts + span + 1) == slot + 1
        given, wanted = split < tl.where(alone, SPLITS, 0), dims < tl.where(alone, D, 0)
    at = (span * HEADS + head) * SPLITS + split
    total = tl.load(totals + at, mask=given, other=0.0)
    full = total > 0
    maximum = tl.load(maxima + at, mask=full, other=-1e30)  # finite: a difference of infinities is NaN
    weight = tl.exp2(maximum - tl.max(maximum, 0))
    acc = tl.load(partial + at[:, None] * D + dims[None, :], mask=full[:, None], other=0.0)
    whole = tl.sum(total * weight, 0)
    result = tl.sum(acc * weight[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + (slot * HEADS + head) * D + dims, result.to(out.dtype.element_ty), mask=wanted)


def attend_rows(out: Tensor, query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata, plan: Tiling) -> None:
    """Fill `out` at the spans of one slot: all of them in a decode; elsewhere the others are `attend_packed`'s."""
    spans, (heads, dim), mixed = metadata.num_spans, query.shape[1:], not metadata.is_decode
    partial, sums = out, out
    if plan.splits > 1:
        partial = torch.empty(spans, heads, plan.splits, dim, dtype=torch.float32, device=out.device)
        sums = torch.empty(2, spans, heads, plan.splits, dtype=torch.float32, device=out.device)
    _decode[(spans, keys.shape[2], plan.splits)](
        partial,
        sums[0],
        sums[-1],
        query,
        keys,
        values,
        metadata.block_tables,
        metadata.span_starts,
        metadata.context_lens,
        plan.scale,
        query.stride(0),
        metadata.block_tables.stride(0),
        GROUP=plan.group,
        BLOCK_M=plan.rows_m,
        SHAPE=tuple(keys.shape[1:]),
        TILE=plan.tile,
        SPLITS=plan.splits,
        SPLIT_TILES=SPLIT_TILES,
        MIXED=mixed,
    )
    if plan.splits > 1:
        _reduce[(spans, heads)](
            out, partial, sums[0], sums[1], metadata.span_starts, HEADS=heads, D=dim, SPLITS=plan.splits, MIXED=mixed
        )
