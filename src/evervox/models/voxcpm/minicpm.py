"""The MiniCPM4 stack that all four transformers of VoxCPM are made of. Source: `voxcpm.modules.minicpm4`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor, nn
from torch.nn.functional import silu

from evervox.layers.attention import Attend, Attention
from evervox.layers.fusing import fused
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
        out: Tensor = self.down(gated(self.gate_up(x)))
        return out


def gated(both: Tensor) -> Tensor:
    """`[..., 2 * ffn]` -> `[..., ffn]`: silu of the first half times the second."""
    kernels = fused(both)
    if kernels is not None:
        out: Tensor = kernels.silu_mul(both)
        return out
    gate, up = both.chunk(2, dim=-1)
    return silu(gate).mul_(up)


class Layer(nn.Module):
    """Pre-norm block; each branch is scaled by `residual_scale` (depth-scaled mu-parametrisation)."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_eps)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.hidden, config.norm_eps)
        self.mlp = Mlp(config)
        self.scale = config.residual_scale

    def forward(
        self,
        x: Tensor,
        normed: Tensor,
        angles: RopeAngles | None,
        attend: Attend,
        *,
        following: RMSNorm,
        wanted: slice | None,
    ) -> tuple[Tensor, Tensor]:
        """`x` and its attention norm to the same for the layer after this one, whose first norm is `following`.

        Only for the slots `wanted`, if they are given; all are attended to.
        """
        attended = self.attention(normed, angles, attend, wanted)
        x, normed = self.mlp_norm.after_adding(x if wanted is None else x[..., wanted, :], attended, self.scale)
        return following.after_adding(x, self.mlp(normed), self.scale)


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

    def forward(self, x: Tensor, positions: Tensor | slice, attend: Attend, wanted: slice | None = None) -> Tensor:
        """`x` `[..., slots, hidden]`, `positions` int64 `[slots]` or a range -> `[..., slots, hidden]`, normed.

        `wanted`: the slots to return. The last layer computes no others.
        """
        angles = self.angles_at(positions)
        norms = cast("list[RMSNorm]", [*(layer.attention_norm for layer in self.layers), self.norm])
        normed: Tensor = norms[0](x)
        for layer, following in zip(self.layers, norms[1:], strict=True):
            x, normed = layer(x, normed, angles, attend, following=following, wanted=wanted if following is self.norm else None)
        return normed

    def angles_at(self, positions: Tensor | slice) -> RopeAngles | None:
        if self.angles is None:
            return None
        cos, sin = self.angles[:, positions].unbind(0)
        return cos, sin
