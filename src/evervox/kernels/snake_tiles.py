"""What the kernels of the VAE share: the snake, and the walk along time of its causal convolutions of 7."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def snake(u):
    """`u + sin(u)^2`. The square has period pi, so a polynomial within half a period of 0 is enough: it is within 5e-9.

    Instead of the library's sine, whose branches for huge arguments cost more than everything else here. Pi comes in three
    parts, the first two of few bits, so that their multiples are exact. From 1e5 on the argument's own rounding shows; from
    1e7 on the square is anything in `[0, 1]`.
    """
    turns = (u * 0.3183098861837907 + 12582912.0) - 12582912.0  # 1.5 * 2^23: rounds to an integer
    rest = ((u - turns * 3.140625) - turns * 9.67502593994140625e-4) - turns * 1.5099579897537296e-07
    square = rest * rest
    odd = -0.00019806615646543907 + square * 2.6000557227437945e-06
    odd = -0.16666657096772333 + square * (0.008333017297921215 + square * odd)
    sine = rest + rest * square * odd
    return u + tl.minimum(sine * sine, 1.0)


@triton.jit
def activated(x, alpha, shift, channel, inside):
    """The snake of what is scaled and shifted by channel; `alpha` None: `x` itself."""
    if alpha is not None:
        x = x * tl.load(alpha + channel, mask=inside, other=0.0)[None, :]
        if shift is not None:
            x += tl.load(shift + channel, mask=inside, other=0.0)[None, :]
        x = snake(x)
    return x


@triton.jit
def first_steps(dilation, STEPS: tl.constexpr, LINES: tl.constexpr):
    """Where this program's lines begin, for a convolution of 7.

    A line is `STEPS` outputs that are `dilation` apart, so that what each of them sees are 7 neighbours. Line `l` is number
    `l % dilation` of the `dilation` lines that make up stretch `l // dilation` of the time.
    """
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)
    return line // dilation * (STEPS * dilation) + line % dilation


@triton.jit
def walk(x, before, alpha, shift, begin, channel, inside, time, width, stride, dilation, STEPS: tl.constexpr):
    """The inputs of `STEPS` outputs: a tuple of 6 more, the oldest first. What precedes the chunk is in `before`, or 0."""
    row = tl.program_id(2).to(tl.int64)
    x += row * time * width
    if before is not None:
        before += row * stride
    seen = ()
    for step in tl.static_range(STEPS + 6):
        at = begin + (step - 6) * dilation
        live = ((at >= 0) & (at < time))[:, None] & inside[None, :]
        u = tl.load(x + at[:, None] * width + channel[None, :], mask=live, other=0.0)
        u = activated(u, alpha, shift, channel, inside)
        if step < 6:
            past = (at < 0)[:, None] & inside[None, :]
            old = tl.zeros_like(u)
            if before is not None:
                place = (at + 6 * dilation)[:, None] * width + channel[None, :]
                old = tl.load(before + place, mask=past, other=0.0)
            u = tl.where(past, old, u)
        seen += (u,)  # type: ignore[assignment]
    return seen


@triton.jit
def keep(after, seen, begin, channel, inside, time, width, stride, dilation, STEPS: tl.constexpr, LINES: tl.constexpr):
    """Write the last `6 * dilation` steps of past and chunk to `after`; to be called after all loads, which a store
    holds up, and before `seen` is used, so that registers become free.

    Each step has one writer. Those of the chunk have the line that outputs them. Those before it are the 6 inputs that come
    before the lines of the first stretch, `6 * dilation` in all.
    """
    after += tl.program_id(2).to(tl.int64) * stride
    stretch = (tl.program_id(0) * LINES + LINES - 1) // dilation
    if (stretch + 1) * STEPS * dilation + 6 * dilation > time:
        for step in tl.static_range(STEPS + 6):
            at = begin + (step - 6) * dilation
            mine = at < (0 if step < 6 else time)
            target = at + 6 * dilation - time
            place = target[:, None] * width + channel[None, :]
            tl.store(after + place, seen[step], mask=(mine & (target >= 0))[:, None] & inside[None, :])


@triton.jit
def taps(weight, stride, inside):
    """The 7 weights of each channel, `stride` apart, as rows."""
    found = ()
    for i in tl.static_range(7):
        found += (tl.load(weight + i * stride, mask=inside, other=0.0)[None, :],)  # type: ignore[assignment]
    return found
