"""The VAE between its matrix products, float32: what lies between two of them is read once and written once.

Each kernel reads the tails `before` and writes the tails `after`. They never share memory, so no program can overwrite what
another has yet to read, and every float of `after` has one writer: whoever computes the step that it holds. A row may have
2^31 floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from evervox.kernels.snake_tiles import activated, first_steps, keep, snake, taps, walk

if TYPE_CHECKING:
    from torch import Tensor

_STEPS = (
    16  # outputs of a program along time: it also computes the 6 inputs before them, which its neighbour does as well. At least 6
)
_TILE = 128  # numbers in a program's hands per step, one a thread


@triton.jit(do_not_specialize=["time", "dilation"])
def _depthwise(
    out,
    after,
    x,
    before,
    alpha,
    shift,
    weight,
    bias,
    time,
    width,
    stride,
    dilation,
    STEPS: tl.constexpr,
    LINES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program: `LINES` lines of some channels of one row."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    begin = first_steps(dilation, STEPS, LINES)
    seen = walk(x, before, alpha, shift, begin, channel, inside, time, width, stride, dilation, STEPS)
    rest = tl.load(bias + channel, mask=inside, other=0.0)[None, :]
    tap = taps(weight + channel * 7, 1, inside)
    if after is not None:
        keep(after, seen, begin, channel, inside, time, width, stride, dilation, STEPS, LINES)
    out += tl.program_id(2).to(tl.int64) * time * width
    for step in tl.static_range(STEPS):
        total = seen[step] * tap[0] + rest
        for i in tl.static_range(1, 7):
            total += seen[step + i] * tap[i]
        if alpha is not None:
            total = snake(total)
        at = begin + step * dilation
        place = at[:, None] * width + channel[None, :]
        tl.store(out + place, total, mask=(at < time)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["time"])
def _mono(
    out,
    after,
    x,
    before,
    alpha,
    weight,
    bias,
    time,
    width,
    stride,
    STEPS: tl.constexpr,
    LINES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program: `LINES` lines of one row, all channels, which it adds up."""
    channel = tl.arange(0, CHANNELS)
    inside = channel < width
    begin = first_steps(1, STEPS, LINES)
    seen = walk(x, before, alpha, None, begin, channel, inside, time, width, stride, 1, STEPS)
    rest = tl.load(bias)
    tap = taps(weight + channel, width, inside)
    if after is not None:
        keep(after, seen, begin, channel, inside, time, width, stride, 1, STEPS, LINES)
    out += tl.program_id(2).to(tl.int64) * time
    for step in tl.static_range(STEPS):
        total = seen[step] * tap[0]
        for i in tl.static_range(1, 7):
            total += seen[step + i] * tap[i]
        at = begin + step
        tl.store(out + at, tl.sum(total, 1) + rest, mask=at < time)


@triton.jit(do_not_specialize=["time", "windows"])
def _windows(
    out,
    after,
    x,
    before,
    alpha,
    shift,
    time,
    width,
    stride,
    windows,
    CONTEXT: tl.constexpr,
    HOP: tl.constexpr,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program: some steps of some channels of one row, the past of the chunk included. A step lies in two windows."""
    row = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < width
    step = tl.program_id(0) * STEPS + tl.arange(0, STEPS)
    at = step - CONTEXT
    live = ((at >= 0) & (at < time))[:, None] & inside[None, :]
    u = tl.load(x + (row * time + at)[:, None] * width + channel[None, :], mask=live, other=0.0)
    u = activated(u, alpha, shift, channel, inside)
    past = (at < 0)[:, None] & inside[None, :]
    old = tl.zeros_like(u)
    if before is not None:
        old = tl.load(before + row * stride + step[:, None] * width + channel[None, :], mask=past, other=0.0)
    u = tl.where(past, old, u)
    if before is not None:
        target = at + CONTEXT - time
        place = row * stride + target[:, None] * width + channel[None, :]
        tl.store(after + place, u, mask=((at < time) & (target >= 0))[:, None] & inside[None, :])
    window, inner = step // HOP, step % HOP
    place = ((row * windows + window) * 2 * HOP + inner)[:, None] * width + channel[None, :]
    tl.store(out + place, u, mask=((at < time) & (window < windows))[:, None] & inside[None, :])
    earlier = (at < time) & (window >= 1) & (window <= windows)
    tl.store(out + place - HOP * width, u, mask=earlier[:, None] & inside[None, :])


def depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    before: Tensor | None,
    after: Tensor | None,
    *,
    dilation: int,
    alpha: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor:
    """A causal convolution of 7 of each channel by itself over `x` `[rows, time, channels]`, between two snakes.

    The first is of `x * alpha + shift`; with `alpha` None there is neither. `weight` `[channels, 1, 1, 7]`. `before` and
    `after` `[rows, 6 * dilation * channels]`: the convolution's past, and what the next call is to take for it; None: zeros.
    """
    x, (rows, time, width) = x.contiguous(), x.shape
    out = torch.empty_like(x)
    channels = min(32, triton.next_power_of_2(width))
    lines = _TILE // channels
    grid = (triton.cdiv(_lines(time, dilation), lines), triton.cdiv(width, channels), rows)
    if x.shape[0]:
        _depthwise[grid](
            out,
            after,
            x,
            before,
            alpha,
            shift,
            weight,
            bias,
            time,
            width,
            0 if before is None else before.stride(0),
            dilation,
            STEPS=_STEPS,
            LINES=lines,
            CHANNELS=channels,
        )
    return out


def mono(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
    """Snake of `x * alpha`, then a causal convolution of 7 from all channels to one: `[rows, time, channels]` -> `[rows, time]`.

    `weight` `[1, 7 * channels]`, oldest step first. `before`, `after` `[rows, 6 * channels]` as in `depthwise`.
    """
    x, (rows, time, width) = x.contiguous(), x.shape
    out = x.new_empty(rows, time)
    channels = triton.next_power_of_2(width)
    lines = max(1, _TILE // channels)
    if rows:
        _mono[(triton.cdiv(_lines(time, 1), lines), 1, rows)](
            out,
            after,
            x,
            before,
            alpha,
            weight,
            bias,
            time,
            width,
            0 if before is None else before.stride(0),
            STEPS=_STEPS,
            LINES=lines,
            CHANNELS=channels,
        )
    return out


def windows(
    x: Tensor, alpha: Tensor, shift: Tensor | None, before: Tensor | None, after: Tensor | None, *, context: int, hop: int
) -> Tensor:
    """Snake of `x * alpha + shift`, then what a convolution of `2 * hop` steps sees every `hop` of them.

    `[rows, time, channels]` -> `[rows, windows, 2 * hop * channels]`, the oldest step first; the first `context` steps are
    `before` `[rows, context * channels]`, and `after` takes the last ones.
    """
    x, (rows, time, width) = x.contiguous(), x.shape
    count = max(0, (context + time) // hop - 1)
    out = x.new_empty(rows, count, 2 * hop * width)
    channels = min(32, triton.next_power_of_2(width))
    steps = 8 * _TILE // channels
    if rows:
        _windows[(triton.cdiv(context + time, steps), triton.cdiv(width, channels), rows)](
            out,
            after,
            x,
            before,
            alpha,
            shift,
            time,
            width,
            0 if before is None else before.stride(0),
            count,
            CONTEXT=context,
            HOP=hop,
            STEPS=steps,
            CHANNELS=channels,
        )
    return out


def _lines(time: int, dilation: int) -> int:
    """Lines that cover `time` steps; without any, those that hand the past on."""
    return dilation * -(-max(1, time) // (_STEPS * dilation))
