"""What both attention kernels do with one span's keys: FlashAttention's running maximum and sum (Dao et al., 2022).

Plain loads and `tl.dot` only: compute capability 7.5 and later.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_keys(query, query_position, keys, values, table, start, stop, head, scale, SHAPE: tl.constexpr, TILE: tl.constexpr):
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
def normalise(acc, total):
    """Normalise; a row that attended nothing is zeros."""
    return acc / tl.where(total > 0, total, 1.0)[:, None]
