"""Scatter of new keys and values into the paged pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def _store(
    key,
    value,
    keys,
    values,
    slot_mapping,
    key_stride,
    value_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a slot: copies its `WIDTH` numbers of key and of value to where the mapping says."""
    slot = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    target = tl.load(slot_mapping + slot) * WIDTH + column
    tl.store(keys + target, tl.load(key + slot * key_stride + column, mask=inside), mask=inside)
    tl.store(values + target, tl.load(value + slot * value_stride + column, mask=inside), mask=inside)


def kv_store(key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """Write `key`, `value` `[N, kv_heads, head_dim]` into `keys`, `values` `[blocks, block_size, kv_heads, head_dim]` in place.

    `slot_mapping` int64 `[N]` holds flat positions `block * block_size + offset`. Of two slots with one position (padding in the
    null block) either may stay. The grid is `N`: fixed where `N` is a bucket.
    """
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("keys and values: the pool must be contiguous")
    if key.stride()[1:] != keys.stride()[2:] or value.stride()[1:] != keys.stride()[2:]:
        raise ValueError(f"key and value: heads must be contiguous within a slot, strides are {key.stride()}, {value.stride()}")
    slots, width = key.shape[0], key.shape[1] * key.shape[2]
    if slots:
        _store[(slots,)](
            key, value, keys, values, slot_mapping, key.stride(0), value.stride(0), width, triton.next_power_of_2(width)
        )
