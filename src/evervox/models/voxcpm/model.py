"""VoxCPM from tokens and patches to the next patch's condition: everything but the solver's loop and the VAE.

Source: `voxcpm.model.voxcpm`, `voxcpm.model.voxcpm2`. N below is a number of slots, packed from one or many sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from evervox.models.voxcpm.config import Conditioning, Fusion
from evervox.models.voxcpm.flow import Steps, solve
from evervox.models.voxcpm.local import LocalDit, LocalEncoder
from evervox.models.voxcpm.minicpm import Stack

if TYPE_CHECKING:
    from evervox.layers.attention import Attend
    from evervox.models.voxcpm.config import VoxConfig


class ScalarQuantizer(nn.Module):
    """FSQ: a bottleneck whose values are rounded to a grid of `2 * scale + 1` levels in [-1, 1]."""

    def __init__(self, hidden: int, dim: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.in_proj = nn.Linear(hidden, dim)
        self.out_proj = nn.Linear(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        levels = torch.round(torch.tanh(self.in_proj(x)) * self.scale) / self.scale
        out: Tensor = self.out_proj(levels)
        return out


class VoxModel(nn.Module):
    """Language model, residual language model, local encoder and DiT with the projections between them."""

    def __init__(self, config: VoxConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.lm.hidden
        # given its weight, it draws none: on the meta device that would import a second's worth of torch
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden, _weight=torch.empty(config.vocab_size, hidden))
        self.lm = Stack(config.lm, config.max_length)
        self.residual = Stack(config.residual, config.max_length)
        self.encoder = LocalEncoder(config)
        self.dit = LocalDit(config)
        self.fsq = ScalarQuantizer(hidden, config.fsq_dim, config.fsq_scale)
        self.enc_to_lm = nn.Linear(config.encoder.hidden, hidden)
        self.lm_to_dit = nn.Linear(hidden, config.dit.hidden)
        self.res_to_dit = nn.Linear(hidden, config.dit.hidden)
        self.fusion = nn.Linear(2 * hidden, hidden) if config.fusion is Fusion.CONCAT else None
        self.stop_proj = nn.Linear(hidden, hidden)
        self.stop_head = nn.Linear(hidden, 2, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def embed_text(self, tokens: Tensor) -> Tensor:
        """int64 `[N]` -> `[N, hidden]`."""
        out: Tensor = self.embed_tokens(tokens) * self.config.embedding_scale
        return out

    def embed_patches(self, patches: Tensor) -> Tensor:
        """`[N, patch_size, latent_dim]` -> `[N, hidden]`: what an audio slot feeds the language models."""
        out: Tensor = self.enc_to_lm(self.encoder(patches))
        return out

    def language(
        self, x: Tensor, is_audio: Tensor, positions: Tensor, lm_kv: Attend, residual_kv: Attend
    ) -> tuple[Tensor, Tensor]:
        """Run both language models over N slots: `x` `[N, hidden]`, `is_audio` bool `[N]`, `positions` `[N]`.

        Returns the hidden states `[N, hidden]` of the LM (quantised at audio slots) and of the residual LM.
        """
        audio = is_audio.unsqueeze(-1)
        raw = self.lm(x, positions, lm_kv)
        hidden = torch.where(audio, self.fsq(raw), raw)
        patch = torch.where(audio, x, torch.zeros_like(x))
        joined = hidden + patch if self.fusion is None else self.fusion(torch.cat((hidden, patch), dim=-1))
        return hidden, self.residual(joined, positions, residual_kv)

    def condition(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """`[rows, hidden]` twice -> the DiT's `mu` `[rows, tokens, dit hidden]`."""
        first, second = self.lm_to_dit(hidden), self.res_to_dit(residual)
        if self.config.conditioning is Conditioning.SUMMED:
            return torch.unsqueeze(first + second, 1)
        return torch.stack((first, second), dim=1)

    def stop_logits(self, hidden: Tensor) -> Tensor:
        """`[rows, hidden]` -> `[rows, 2]`; the second is "stop"."""
        out: Tensor = self.stop_head(silu(self.stop_proj(hidden)))
        return out

    def next_patch(self, mu: Tensor, previous: Tensor, noise: Tensor, steps: Steps, cfg: Tensor) -> Tensor:
        """`[rows, patch_size, latent_dim]` from the condition, the previous patch and noise of that shape."""
        return solve(self.dit, noise, mu, cond=previous, steps=steps, cfg=cfg, mean_mode=self.config.mean_mode)
