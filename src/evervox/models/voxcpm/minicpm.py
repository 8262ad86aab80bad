"""The MiniCPM4 stack that all four transformers of VoxCPM are made of. Source: `voxcpm.modules.minicpm4`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from evervox.layers.attention import Attend, Attention
from evervox.layers.norm import RMSNorm
from evervox.layers.rope import RopeAngles, rope_table

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import TransformerConfig


class Mlp(nn.Module):
    """SwiGLU with fused gate and up."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden, 2 * config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(silu(gate).mul_(up))
        return out


class Layer(nn.Module):
    """Pre-norm block; each branch is scaled by `residual_scale` (depth-scaled mu-parametrisation)."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config)
        self.scale = config.residual_scale

    def forward(self, x: Tensor, angles: RopeAngles | None, attend: Attend) -> Tensor:
        x = torch.add(x, self.attention(self.attention_norm(x), angles, attend), alpha=self.scale)
        return torch.add(x, self.mlp(self.mlp_norm(x)), alpha=self.scale)


class Stack(nn.Module):
    """Layers and a final norm. Positions are an argument; keys and values live in the `Attend`."""

    angles: Tensor | None

    def __init__(self, config: TransformerConfig, num_positions: int) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        table = None if config.rope is None else rope_table(config.rope, config.head_dim, num_positions)
        self.register_buffer("angles", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """`x` `[..., slots, hidden]`, `positions` int64 `[slots]` -> `[..., slots, hidden]`, normed."""
        angles = self.angles_at(positions)
        for layer in self.layers:
            x = layer(x, angles, attend)
        out: Tensor = self.norm(x)
        return out

    def angles_at(self, positions: Tensor) -> RopeAngles | None:
        if self.angles is None:
            return None
        cos, sin = self.angles[:, positions].unbind(0)
        return cos, sin
