"""Attention over a paged KV pool: one kernel for packed spans of any length, one for decode that splits long contexts.

Both keep the running maximum and sum of FlashAttention (Dao et al., 2022); the split and its reduction are Flash-Decoding's.
All lengths and block ids are read on the device, and every grid follows from shapes alone, so a CUDA graph records a call. Plain
loads and `tl.dot` only: compute capability 7.5 and later. The twin is `layers.attention`'s gather and SDPA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from evervox.layers.attention_metadata import AttentionMetadata

_LOG2E = 1.4426950408889634
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_DECODE_PROGRAMS = 256  # about two a multiprocessor on the largest cards: more rows need fewer splits to fill one
_MAX_SPLITS = 32
_SPLIT_TILES = 4  # a split shorter than this costs more in the reduction than it saves


@triton.jit
def _attend(query, query_position, keys, values, table, start, stop, head, scale, SHAPE: tl.constexpr, TILE: tl.constexpr):
    """Attend `query` `[M, D]` to keys `[start, stop)` of one span: unnormalised sum `[M, D]`, maximum and total `[M]`, base 2.

    Keys outside the range are never loaded, so whatever lies in unused parts of a block stays out of the sums.
    """
    BLOCK_SIZE: tl.constexpr = SHAPE[0]
    KV_HEADS: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    dims = tl.arange(0, D)
    total = tl.zeros([query.shape[0]], tl.float32)
    maximum = total - float("inf")
    acc = tl.zeros([query.shape[0], D], tl.float32)
    for first in range(start, stop, TILE):
        position = first + tl.arange(0, TILE)
        live = position < stop
        block = tl.load(table + position // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
        at = ((block * BLOCK_SIZE + position % BLOCK_SIZE) * KV_HEADS + head) * D
        key = tl.load(keys + at[None, :] + dims[:, None], mask=live[None, :], other=0.0)
        scores = tl.dot(query, key, input_precision="ieee") * scale
        seen = live[None, :] & (position[None, :] <= query_position[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, 1))
        shrink = tl.exp2(maximum - higher)
        weights = tl.exp2(scores - higher[:, None])
        value = tl.load(values + at[:, None] + dims[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(weights.to(value.dtype), value, acc * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        maximum = higher
    return acc, maximum, total


@triton.jit
def _finish(acc, total):
    """Normalise; a row that attended nothing is zeros."""
    return acc / tl.where(total > 0, total, 1.0)[:, None]


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
    counts as a span without context."""
    KV_HEADS: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    tile, head = tl.program_id(0), tl.program_id(1)
    span = _find_span(span_starts, num_spans, tile, BLOCK_Q)
    real = span < num_spans
    begin = tl.load(span_starts + span)
    length = tl.load(span_starts + span + 1, mask=real, other=num_slots) - begin
    first = (tile - begin // BLOCK_Q - span) * BLOCK_Q
    if first < length:
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
        acc, _, total = _attend(q, position, keys, values, table, 0, stop, head, scale, SHAPE, TILE)
        target = out + ((slot * KV_HEADS * GROUP + heads) * D)[:, None] + dims[None, :]
        tl.store(target, _finish(acc, total).to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _decode(
    out,
    maxima,
    totals,
    query,
    keys,
    values,
    block_tables,
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
):
    """One program: one row's heads of one KV head over one part of its context. With one split `out` is `[R, heads, D]` and
    finished; else float32 `[R, heads, SPLITS, D]`, unnormalised, beside `maxima` and `totals` `[R, heads, SPLITS]`."""
    KV_HEADS: tl.constexpr = SHAPE[1]
    D: tl.constexpr = SHAPE[2]
    span, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    context = tl.load(context_lens + span)
    width = tl.maximum(tl.cdiv(tl.cdiv(context, TILE), SPLITS), SPLIT_TILES) * TILE
    start = split * width
    stop = tl.minimum(start + width, context)
    row = tl.arange(0, BLOCK_M)
    inside = row < GROUP
    heads = head * GROUP + row
    dims = tl.arange(0, D)
    q = tl.load(query + span * query_stride + (heads * D)[:, None] + dims[None, :], mask=inside[:, None], other=0.0)
    position = row * 0 + context
    table = block_tables + span * table_stride
    acc, maximum, total = _attend(q, position, keys, values, table, start, stop, head, scale, SHAPE, TILE)
    at = (span * KV_HEADS * GROUP + heads) * SPLITS + split
    target = out + (at * D)[:, None] + dims[None, :]
    if SPLITS == 1:
        tl.store(target, _finish(acc, total).to(out.dtype.element_ty), mask=inside[:, None])
    else:
        tl.store(maxima + at, maximum, mask=inside)
        tl.store(totals + at, total, mask=inside)
        tl.store(target, acc, mask=(inside & (total > 0))[:, None])


@triton.jit
def _reduce(out, partial, maxima, totals, D: tl.constexpr, SPLITS: tl.constexpr):
    """One program: one row's head. Parts without keys have total 0 and were never written."""
    at = tl.program_id(0).to(tl.int64)
    split, dims = tl.arange(0, SPLITS), tl.arange(0, D)
    total = tl.load(totals + at * SPLITS + split)
    full = total > 0
    maximum = tl.load(maxima + at * SPLITS + split, mask=full, other=-1e30)  # finite: a difference of infinities is NaN
    weight = tl.exp2(maximum - tl.max(maximum, 0))
    acc = tl.load(partial + (at * SPLITS + split)[:, None] * D + dims[None, :], mask=full[:, None], other=0.0)
    whole = tl.sum(total * weight, 0)
    result = tl.sum(acc * weight[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + at * D + dims, result.to(out.dtype.element_ty))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Launch constants of one combination of shapes; functions of shapes alone, so a bucket always launches the same grid."""

    group: int
    block_m: int
    block_q: int
    tile: int
    splits: int


def supports(dtype: torch.dtype, head_dim: int) -> bool:
    """Are there kernels for this? Otherwise the twin serves."""
    return dtype in _DTYPES and 16 <= head_dim <= 256 and head_dim & (head_dim - 1) == 0


def tiling(query: Tensor, keys: Tensor, metadata: AttentionMetadata) -> Tiling:
    """Tile sizes keep a program's query, keys and values under 64 KB of shared memory: the least among the supported cards."""
    group = query.shape[1] // keys.shape[2]
    wide = query.element_size() * query.shape[2] > 256
    least = max(16, triton.next_power_of_2(group))
    block_m = least if metadata.is_decode else max(least, 16 if wide else 64)
    tile = 16 if wide else 32
    programs = metadata.num_spans * keys.shape[2]
    longest = metadata.block_tables.shape[1] * keys.shape[1] // (tile * _SPLIT_TILES)
    splits = min(_DECODE_PROGRAMS // programs, longest, _MAX_SPLITS)
    return Tiling(group, block_m, block_m // group, tile, 1 << max(splits, 1).bit_length() - 1)


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata) -> Tensor:
    """`query` `[N, heads, head_dim]` over pools `[blocks, block_size, kv_heads, head_dim]` -> `[N, heads, head_dim]`.

    The new keys and values must be in the pool already (`kv_store`). Scores are scaled by `head_dim ** -0.5`, summed in float32.
    """
    _check(query, keys, values, metadata)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    plan = tiling(query, keys, metadata)
    if metadata.is_decode:
        _launch_decode(out, query, keys, values, metadata, plan)
    else:
        _launch_packed(out, query, keys, values, metadata, plan)
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


def _constants(query: Tensor, keys: Tensor, plan: Tiling) -> dict[str, object]:
    return {"GROUP": plan.group, "BLOCK_M": plan.block_m, "SHAPE": tuple(keys.shape[1:]), "TILE": plan.tile}


def _launch_packed(out: Tensor, query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata, plan: Tiling) -> None:
    slots, _, dim = query.shape
    spans = metadata.num_spans
    grid = (slots // plan.block_q + spans + 1, keys.shape[2])
    _packed[grid](
        out,
        query,
        keys,
        values,
        metadata.block_tables,
        metadata.span_starts,
        metadata.context_lens,
        dim**-0.5 * _LOG2E,
        query.stride(0),
        metadata.block_tables.stride(0),
        slots,
        spans,
        BLOCK_Q=plan.block_q,
        **_constants(query, keys, plan),
    )


def _launch_decode(out: Tensor, query: Tensor, keys: Tensor, values: Tensor, metadata: AttentionMetadata, plan: Tiling) -> None:
    rows, heads, dim = query.shape
    if not rows:
        return
    partial, sums = out, out
    if plan.splits > 1:
        partial = torch.empty(rows, heads, plan.splits, dim, dtype=torch.float32, device=out.device)
        sums = torch.empty(2, rows, heads, plan.splits, dtype=torch.float32, device=out.device)
    _decode[(rows, keys.shape[2], plan.splits)](
        partial,
        sums[0],
        sums[-1],
        query,
        keys,
        values,
        metadata.block_tables,
        metadata.context_lens,
        dim**-0.5 * _LOG2E,
        query.stride(0),
        metadata.block_tables.stride(0),
        SPLITS=plan.splits,
        SPLIT_TILES=_SPLIT_TILES,
        **_constants(query, keys, plan),
    )
    if plan.splits > 1:
        _reduce[(rows * heads,)](out, partial, sums[0], sums[1], D=dim, SPLITS=plan.splits)
