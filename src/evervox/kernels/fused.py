"""The small operations between matrix products, one kernel each: with few rows a step is as long as its list of kernels.

Each is float32 inside and rounds where its plain form in `layers` rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def _add_norm(total, normed, x, y, weight, scale, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row: `total = x + y * scale`, then its RMS norm."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < SIZE
    at = row * SIZE + column
    branch = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    added = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + branch * scale).to(total.dtype.element_ty)
    tl.store(total + at, added, mask=inside)
    wide = added.to(tl.float32)
    spread = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * spread * gain).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _silu_mul(out, both, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """`both` `[rows, 2 * SIZE]`: a gate, then what it lets through."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    gate = tl.load(both + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    opened = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * SIZE + column, (opened * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["period"])
def _rotate(out, x, cos, sin, stride, period, angle_stride, HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, D: tl.constexpr):
    """One program a slot, all its heads. The sines of the first half come negated."""
    slot = tl.program_id(0).to(tl.int64)
    heads, dims = tl.arange(0, HEADS_BLOCK), tl.arange(0, D)
    inside = (heads < HEADS)[:, None]
    angle = (slot % period) * angle_stride + dims
    own = tl.load(x + slot * stride + heads[:, None] * D + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x + slot * stride + heads[:, None] * D + ((dims + D // 2) % D)[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    turned = own * tl.load(cos + angle)[None, :] + other * tl.load(sin + angle)[None, :]
    tl.store(out + slot * HEADS * D + heads[:, None] * D + dims[None, :], turned.to(out.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, *, scale: float, eps: float) -> tuple[Tensor, Tensor]:
    """`x + y * scale` and its RMS norm, `[..., size]` each."""
    x, y, size = x.contiguous(), y.contiguous(), x.shape[-1]
    total, normed = torch.empty_like(x), torch.empty_like(x)
    if x.numel():
        _add_norm[(x.numel() // size,)](total, normed, x, y, weight, scale, eps, SIZE=size, BLOCK=triton.next_power_of_2(size))
    return total, normed


def silu_mul(both: Tensor) -> Tensor:
    """`[..., 2 * size]` -> `[..., size]`: silu of the first half times the second."""
    both, size = both.contiguous(), both.shape[-1] // 2
    out = both.new_empty(*both.shape[:-1], size)
    block = min(1024, triton.next_power_of_2(size))
    if out.numel():
        _silu_mul[(out.numel() // size, triton.cdiv(size, block))](out, both, SIZE=size, BLOCK=block)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` `[..., slots, heads, head_dim]` with slots evenly apart in memory; `cos`, `sin` float32 `[slots, head_dim]`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        heads, dim = x.shape[-2:]
        _rotate[(x.numel() // (heads * dim),)](
            out, x, cos, sin, x.stride(-3), len(cos), cos.stride(0), HEADS=heads, HEADS_BLOCK=triton.next_power_of_2(heads), D=dim
        )
    return out


def can_rotate(x: Tensor, cos: Tensor) -> bool:
    """Slots evenly apart through all leading dimensions, heads contiguous, a power of 2 of dimensions."""
    even = all(x.stride(i) == x.stride(i + 1) * x.shape[i + 1] for i in range(x.ndim - 3))
    inner = x.stride()[-2:] == (x.shape[-1], 1) and cos.stride(-1) == 1
    return even and inner and cos.ndim == 2 and x.shape[-1] & (x.shape[-1] - 1) == 0
