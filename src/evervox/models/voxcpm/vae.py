"""The AudioVAE: mono audio to latent frames and back, whole or as a stream. Source: `voxcpm.modules.audiovae`, both versions.

Everything is causal, so a chunk needs only what each convolution saw last. That is the stream's tail, a typed argument with
one row per stream; nothing is kept in the modules. Weights come through `vae_weights.vae_state`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evervox.errors import CheckpointError
from evervox.layers.fusing import fused_snake
from evervox.models.voxcpm.vae_layers import Carry, Dense, Depthwise, Down, Streamed, Up, snake_, weight

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import VaeConfig

ENCODE_FRAMES = 64
"""Frames encoded at a time: bounds the memory of a long clip, and is enough for full speed."""


@dataclass(frozen=True)
class DecoderTails:
    """What the decoder's convolutions saw last, one row per stream: `state` `[rows, floats]`. Zeros: a stream's beginning."""

    state: Tensor

    @property
    def num_rows(self) -> int:
        return self.state.shape[0]

    @property
    def num_bytes(self) -> int:
        return self.state.nbytes

    def reset(self, row: int) -> None:
        """Make `row` the beginning of a stream."""
        self.state[row].zero_()


class AudioVae(nn.Module):
    """Encoder and decoder. `decoder_reach` frames of input settle the decoder's tails, whatever came before them."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.decoder_reach = _reach(config)
        self.requires_grad_(False)

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.alpha.dtype

    @property
    def device(self) -> torch.device:
        return self.decoder.alpha.device

    def encode(self, audio: Tensor) -> Tensor:
        """`[rows, samples]` at the encoder's rate to the latents' means `[rows, frames, latent_dim]`.

        A last frame that is not whole is filled with zeros.
        """
        hop = self.config.encoder_hop
        audio = F.pad(audio, (0, -audio.shape[1] % hop)).to(self.dtype)
        state, latents = audio.new_zeros(audio.shape[0], _tail_floats(self.encoder)), []
        for part in torch.split(audio, ENCODE_FRAMES * hop, dim=1):
            carry = Carry(state)
            latents.append(self.encoder(part, carry))
            state = carry.after
        return torch.cat(latents, dim=1)

    def decode(self, latents: Tensor, tails: DecoderTails | None = None, rows: Tensor | None = None) -> Tensor:
        """`[rows, frames, latent_dim]` to `[rows, samples]` at the output rate.

        With `tails` the latents continue the streams in `rows` (indices `[rows]`, each at most once; None: all of them, in
        order), whose tails are then replaced; if this raises, they are as they were.
        """
        if tails is None:
            return self._decode(latents, Carry())
        carry = Carry(tails.state if rows is None else tails.state.index_select(0, rows))
        audio = self._decode(latents, carry)
        if rows is None:
            tails.state.copy_(carry.after)
        else:
            tails.state.index_copy_(0, rows, carry.after)
        return audio

    def new_tails(self, rows: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> DecoderTails:
        """Tails of `rows` streams that have not begun. `dtype` is the module's unless given."""
        return DecoderTails(
            torch.zeros(rows, _tail_floats(self.decoder), device=device or self.device, dtype=dtype or self.dtype)
        )

    def _decode(self, latents: Tensor, carry: Carry) -> Tensor:
        audio: Tensor = self.decoder(latents.to(self.dtype), carry)
        return audio


class Encoder(nn.Module):
    """`[rows, samples]` of whole frames to `[rows, frames, latent_dim]`."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        if min(config.encoder_rates) < 2:
            raise CheckpointError(f"audio_vae_config.encoder_rates must be at least 2, not {list(config.encoder_rates)}")
        widths = [config.encoder_dim * 2**i for i in range(len(config.encoder_rates) + 1)]
        self.first = Dense(1, widths[0], 7)
        self.stages = nn.ModuleList(
            Down(width, rate, encoder_context(rate, config), config.depthwise)
            for width, rate in zip(widths, config.encoder_rates, strict=False)
        )
        self.mean = Dense(widths[-1], config.latent_dim, 3)

    def forward(self, audio: Tensor, carry: Carry) -> Tensor:
        x = self.first(audio.unsqueeze(2), carry)
        for stage in self.stages:
            x = stage(x, carry)
        latents: Tensor = self.mean(x, carry)
        return latents


class Decoder(nn.Module):
    """`[rows, frames, latent_dim]` to `[rows, samples]`."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths = [config.decoder_dim // 2**i for i in range(len(config.decoder_rates) + 1)]
        latent = config.latent_dim
        first = [Depthwise(latent, 7), Dense(latent, widths[0])] if config.depthwise else [Dense(latent, widths[0], 7)]
        self.first = nn.ModuleList(first)
        self.stages = nn.ModuleList(
            Up(inputs, outputs, rate, config.depthwise)
            for inputs, outputs, rate in zip(widths, widths[1:], config.decoder_rates, strict=False)
        )
        self.alpha = weight(widths[-1])
        self.last = Dense(widths[-1], 1, 7)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        for layer in (*self.first, *self.stages):
            x = layer(x, carry)
        return torch.tanh(self._mono(x, carry))

    def _mono(self, x: Tensor, carry: Carry) -> Tensor:
        kernels, last = fused_snake(x), self.last
        if kernels is not None:
            out: Tensor = kernels.mono(x, self.alpha, last.linear.weight, last.linear.bias, *carry.take(last.tail_floats))
        else:
            out = last(snake_(x * self.alpha), carry).squeeze(2)
        return out


def encoder_context(rate: int, config: VaeConfig) -> int:
    """Steps before its input that the encoder's convolution of stride `rate` sees; an odd rate in V1 has one more."""
    return rate if config.trim_odd_strides else 2 * math.ceil(rate / 2)


def _tail_floats(module: nn.Module) -> int:
    return sum(layer.tail_floats for layer in module.modules() if isinstance(layer, Streamed))


def _reach(config: VaeConfig) -> int:
    """Walk back from the last sample: how many frames until no tail depends on anything older."""
    steps = 6
    for rate in reversed(config.decoder_rates):
        steps = math.ceil((steps + 6 * (1 + 3 + 9)) / rate) + 1
    return steps + 6
