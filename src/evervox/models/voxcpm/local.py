"""The two transformers that work within one patch: the encoder (patch -> embedding) and the DiT (noise -> velocity).

Source: `voxcpm.modules.locenc`, `voxcpm.modules.locdit`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from evervox.layers.attention import attend_within
from evervox.models.voxcpm.config import Conditioning, TransformerConfig
from evervox.models.voxcpm.minicpm import Stack

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import VoxConfig


FIRST = slice(1)


class LocalEncoder(nn.Module):
    """One embedding per patch: the first slot of a small bidirectional stack over a learned token and the patch's frames."""

    def __init__(self, config: VoxConfig) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.zeros(1, 1, 1, config.encoder.hidden))
        self.in_proj = nn.Linear(config.latent_dim, config.encoder.hidden)
        self.stack = Stack(config.encoder, config.patch_size + 1)

    def forward(self, patches: Tensor) -> Tensor:
        """`[rows, patch_size, latent_dim]` -> `[rows, hidden]`."""
        frames = self.in_proj(patches)
        x = torch.cat((self.special_token[0].expand(len(frames), -1, -1), frames), dim=1)
        out: Tensor = self.stack(x, slice(x.shape[1]), attend_within, FIRST)[:, 0]
        return out


class TimeEmbedding(nn.Module):
    """Sinusoids of a time in [0, 1], then a two-layer perceptron. Everything in the dtype of `t`, as the reference does it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.first = nn.Linear(hidden, hidden)
        self.second = nn.Linear(hidden, hidden)

    def forward(self, t: Tensor) -> Tensor:
        """`[n]` -> `[n, hidden]`."""
        half = self.hidden // 2
        exponents = torch.arange(half, dtype=t.dtype, device=t.device) * -(math.log(10000) / (half - 1))
        angles = 1000 * t.unsqueeze(1) * torch.exp(exponents).unsqueeze(0)
        sinusoids = torch.cat((angles.sin(), angles.cos()), dim=-1)
        out: Tensor = self.second(silu(self.first(sinusoids)))
        return out


class LocalDit(nn.Module):
    """Velocity of the frames of one patch, given the LM's condition, the time and the previous patch."""

    def __init__(self, config: VoxConfig) -> None:
        super().__init__()
        dit: TransformerConfig = config.dit
        self.conditioning = config.conditioning
        self.patch_size = config.patch_size
        self.in_proj = nn.Linear(config.latent_dim, dit.hidden)
        self.cond_proj = nn.Linear(config.latent_dim, dit.hidden)
        self.out_proj = nn.Linear(dit.hidden, config.latent_dim)
        self.time = TimeEmbedding(dit.hidden)
        self.delta_time = TimeEmbedding(dit.hidden)
        self.stack = Stack(dit, 2 * config.patch_size + 3)

    def embed_time(self, t: Tensor, dt: Tensor) -> Tensor:
        """`[n]`, `[n]` -> `[n, hidden]`."""
        out: Tensor = self.time(t) + self.delta_time(dt)
        return out

    def forward(self, frames: Tensor, mu: Tensor, time: Tensor, cond: Tensor) -> Tensor:
        """Velocity `[..., patch_size, latent_dim]`, `...` being the leading dimensions of `mu` `[..., tokens, hidden]`.

        `frames` and `cond` `[rows, patch_size, hidden]` are projected already (they serve both guidance halves and all steps);
        `time` `[rows, hidden]`. Before `rows`, `mu` may have a dimension that all three share.
        """
        when = time.unsqueeze(-2)
        head = (mu + when,) if self.conditioning is Conditioning.SUMMED else (mu, when)
        x = torch.cat([part.expand(*mu.shape[:-2], -1, -1) for part in (*head, cond, frames)], dim=-2)
        hidden = self.stack(x.flatten(0, -3), slice(x.shape[-2]), attend_within, slice(-self.patch_size, None))
        out: Tensor = self.out_proj(hidden)
        return out.view(*mu.shape[:-2], *out.shape[-2:])
