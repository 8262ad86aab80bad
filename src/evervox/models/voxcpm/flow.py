"""The flow solver: Euler steps from noise to a patch, guided, with time, step and guidance per row.

Source: `voxcpm.modules.locdit.unified_cfm`. Sway sampling with coefficient 1; CFG-zero*: the first steps contribute nothing and
the unconditional half is rescaled by its projection on the conditional one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evervox.models.voxcpm.config import MAX_TIMESTEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evervox.models.voxcpm.local import LocalDit


@dataclass(frozen=True, slots=True)
class Schedule:
    """The evaluated steps of one number of timesteps, `[evaluations]` each, on the CPU in the model's dtype."""

    t: Tensor
    dt: Tensor


@lru_cache(maxsize=4 * MAX_TIMESTEPS)
def schedule(timesteps: int, dtype: torch.dtype) -> Schedule:
    """Times and step sizes, accumulated in `dtype` exactly as the reference accumulates them."""
    span = torch.linspace(1, 0, timesteps + 1, dtype=dtype)
    span = span + (torch.cos(torch.pi / 2 * span) - 1 + span)
    skipped = timesteps - num_evaluations(timesteps)
    t, dt, times, steps = span[0], span[0] - span[1], [], []
    for step in range(1, len(span)):
        if step > skipped:
            times.append(t)
            steps.append(dt)
        t = t - dt
        if step < len(span) - 1:
            dt = t - span[step + 1]
    empty = span.new_empty(0)
    return Schedule(torch.stack(times) if times else empty, torch.stack(steps) if steps else empty)


@dataclass(frozen=True, slots=True)
class Steps:
    """Solver steps of a batch, sorted by falling number of evaluations.

    `t`, `dt` `[evaluations, rows]` (zeros past a row's end); `active[k]`: how many leading rows still evaluate at step k.
    """

    t: Tensor
    dt: Tensor
    active: tuple[int, ...]

    @classmethod
    def of(cls, timesteps: Sequence[int], dtype: torch.dtype) -> Steps:
        """`timesteps` of each row, falling."""
        plans = [schedule(n, dtype) for n in timesteps]
        longest = max(len(p.t) for p in plans)
        t, dt = torch.zeros(2, longest, len(plans), dtype=dtype).unbind(0)
        for row, plan in enumerate(plans):
            t[: len(plan.t), row], dt[: len(plan.t), row] = plan.t, plan.dt
        return cls(t, dt, tuple(sum(len(p.t) > k for p in plans) for k in range(longest)))

    def to(self, device: torch.device) -> Steps:
        return Steps(self.t.to(device), self.dt.to(device), self.active)


def solve(dit: LocalDit, noise: Tensor, mu: Tensor, *, cond: Tensor, steps: Steps, cfg: Tensor, mean_mode: bool) -> Tensor:
    """Integrate `noise` `[rows, patch_size, latent_dim]` to a patch of the same shape.

    `mu` `[rows, tokens, hidden]`, `cond` the previous patch `[rows, patch_size, latent_dim]`, `cfg` `[rows]`.
    """
    x = noise
    guided = torch.stack((mu, torch.zeros_like(mu)))
    projected = dit.cond_proj(cond)
    deltas = steps.dt if mean_mode else torch.zeros_like(steps.dt)
    for k, rows in enumerate(steps.active):
        time = dit.embed_time(steps.t[k, :rows], deltas[k, :rows])
        velocity = guided_velocity(dit, x[:rows], guided[:, :rows], time=time, cond=projected[:rows], cfg=cfg[:rows])
        moved = x[:rows] - steps.dt[k, :rows, None, None] * velocity
        x = moved if rows == len(x) else torch.cat((moved, x[rows:]))
    return x


def guided_velocity(dit: LocalDit, x: Tensor, mu: Tensor, *, time: Tensor, cond: Tensor, cfg: Tensor) -> Tensor:
    """One evaluation, both guidance halves in one batch: `mu` `[2, rows, ...]`, conditional half first; `cond` serves both."""
    both = dit(dit.in_proj(x), mu, time, cond)
    positive, negative = both.unbind(0)
    dot, square = (both * negative).sum((2, 3), keepdim=True).unbind(0)
    base = negative * (dot / (square + 1e-8))
    return torch.lerp(base, positive, cfg[:, None, None])


def num_evaluations(timesteps: int) -> int:
    """How often the DiT runs for one patch."""
    return timesteps - max(1, math.floor((timesteps + 1) * 0.04))
