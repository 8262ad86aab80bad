"""Rotary positions with long-context factors (LongRoPE), as MiniCPM4 uses them.

Whatever the dtype, what is rotated is rounded to float32 first, like the reference; then the table's dtype decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evervox.layers.fusing import fused

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import RopeConfig

RopeAngles = tuple[Tensor, Tensor]
"""Cosines and sines `[..., head_dim]`, one per slot, the sines of the first half negated; float32, or float64 with the model."""


def rope_table(config: RopeConfig, head_dim: int, num_positions: int) -> Tensor:
    """`RopeAngles` of every position: float32 `[2, num_positions, head_dim]` on the CPU."""
    positions = torch.arange(num_positions, dtype=torch.float32, device="cpu")
    exponents = torch.arange(0, head_dim, 2, device="cpu").float() / head_dim
    frequencies = 1.0 / (config.theta**exponents)
    long = config.max_positions > config.original_max_positions
    factor = torch.tensor(config.long_factor if long else config.short_factor, dtype=torch.float32, device="cpu")
    angles = torch.outer(positions, 1.0 / factor) * frequencies
    ratio = config.max_positions / config.original_max_positions
    scale = math.sqrt(1 + math.log(ratio) / math.log(config.original_max_positions))
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))


def rotate(x: Tensor, angles: RopeAngles) -> Tensor:
    """Rotate `[..., heads, head_dim]` by the angles of each slot `[..., head_dim]`."""
    kernels = fused(x)
    if kernels is not None and kernels.can_rotate(x, angles[0]):
        turned: Tensor = kernels.rotate(x, *angles)
        return turned
    cos, sin = angles[0].unsqueeze(-2), angles[1].unsqueeze(-2)
    wide = x.to(torch.float32)
    return torch.addcmul(wide * cos, wide.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)
