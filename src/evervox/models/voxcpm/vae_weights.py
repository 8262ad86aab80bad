"""From the tensors of `audiovae.safetensors` (or `.pth`) to the parameters of `AudioVae`.

Folds weight norm, the snake activations' slopes, residual units' biases (see `vae_layers` for both) and the conditioning on
the output rate, and lays the convolutions out as matrices. Names and shapes of a checkpoint: `voxcpm.modules.audiovae`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from evervox.models.voxcpm.config import VaeConfig

SMALLEST_SLOPE = 1e-7
"""A snake of slope zero is the identity; one of this slope is too, within rounding, and can be divided by."""

_IGNORED = "encoder.fc_logvar."
_SPELLINGS = (("weight_g", "weight_v"), ("parametrizations.weight.original0", "parametrizations.weight.original1"))


class Conv(NamedTuple):
    """A convolution of a checkpoint without its weight norm: `weight` as `torch.nn` has it."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class VaeState:
    """Parameters of `AudioVae` by name, and what did not fit: the parameters are good only when all three lists are empty."""

    state: dict[str, Tensor]
    missing: list[str]
    leftover: list[str]
    misshaped: list[str]


def vae_state(raw: Mapping[str, Tensor], config: VaeConfig, dtype: torch.dtype = torch.float32) -> VaeState:
    """Turn a checkpoint's tensors into the parameters of `AudioVae(config)`, computed and returned in `dtype`."""
    reader = _Reader(raw, dtype)
    state = _state(reader, config)
    leftover = sorted(name for name in raw if name not in reader.seen and not name.startswith(_IGNORED))
    return VaeState(state, reader.missing, leftover, reader.misshaped)


def raw_vae_shapes(config: VaeConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a checkpoint of this config holds, those that we ignore included."""
    reader = _Reader({}, torch.float32)
    _state(reader, config)
    return reader.seen | {name.replace("fc_mu", "fc_logvar"): shape for name, shape in reader.seen.items()}


class _Reader:
    """Takes tensors by name, and keeps the books of what was asked for and how it was wrong."""

    def __init__(self, raw: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._raw = raw
        self.dtype = dtype
        self.seen: dict[str, tuple[int, ...]] = {}
        self.missing: list[str] = []
        self.misshaped: list[str] = []

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, or zeros in its place once the problem is noted."""
        self.seen[name] = shape
        tensor = self._raw.get(name)
        if tensor is None:
            self.missing.append(name)
        elif tuple(tensor.shape) != shape:
            self.misshaped.append(f"{name} is {list(tensor.shape)}, expected {list(shape)}")
        else:
            return tensor.to(self.dtype, copy=True)  # a view would keep the whole checkpoint file mapped
        return torch.zeros(shape, dtype=self.dtype)

    def conv(self, name: str, *shape: int, outputs: int | None = None) -> Conv:
        """Convolution `name`; `outputs` if not `shape[0]`. Weight norm is over all but the first dimension."""
        bias = self.take(f"{name}.bias", outputs or shape[0])
        if f"{name}.weight" in self._raw:
            return Conv(self.take(f"{name}.weight", *shape), bias)
        scale, direction = next((pair for pair in _SPELLINGS if f"{name}.{pair[1]}" in self._raw), _SPELLINGS[0])
        length = self.take(f"{name}.{scale}", shape[0], 1, 1)
        vector = self.take(f"{name}.{direction}", *shape)
        return Conv(vector * (length / vector.flatten(1).norm(dim=1)[:, None, None]), bias)

    def slope(self, name: str, channels: int) -> Tensor:
        """Slope `[channels]` of the snake `name`, never so small that its inverse overflows."""
        alpha = self.take(f"{name}.alpha", 1, channels, 1).flatten()
        return torch.where(alpha.abs() < SMALLEST_SLOPE, SMALLEST_SLOPE, alpha)


def _state(reader: _Reader, config: VaeConfig) -> dict[str, Tensor]:
    return {
        **{f"encoder.{name}": tensor for name, tensor in _encoder(reader, config).items()},
        **{f"decoder.{name}": tensor for name, tensor in _decoder(reader, config).items()},
    }


def _encoder(reader: _Reader, config: VaeConfig) -> dict[str, Tensor]:
    width = config.encoder_dim
    before, state = "first", _dense("first", reader.conv("encoder.block.0", width, 1, 7))
    for i, rate in enumerate(config.encoder_rates):
        source, ours = f"encoder.block.{i + 1}.block", f"stages.{i}"
        units, ahead = _units(reader, [f"{source}.{j}" for j in (0, 1, 2)], f"{ours}.units", width, config.depthwise)
        state |= units
        state[f"{before}.linear.bias"] += ahead
        slope = reader.slope(f"{source}.3", width)
        state[f"{ours}.alpha"] = slope
        state |= _dense(f"{ours}.conv", reader.conv(f"{source}.4", 2 * width, width, 2 * rate), slope)
        before, width = f"{ours}.conv", 2 * width
    return state | _dense("mean", reader.conv("encoder.fc_mu", config.latent_dim, width, 3))


def _decoder(reader: _Reader, config: VaeConfig) -> dict[str, Tensor]:
    width, latent = config.decoder_dim, config.latent_dim
    if config.depthwise:
        state = _depthwise("first.0", reader.conv("decoder.model.0", latent, 1, 7))
        state |= _dense("first.1", reader.conv("decoder.model.1", width, latent, 1))
    else:
        state = _dense("first.0", reader.conv("decoder.model.0", width, latent, 7))
    at = 2 if config.depthwise else 1
    bucket = _bucket(reader, config)
    for i, rate in enumerate(config.decoder_rates):
        source, ours = f"decoder.model.{at + i}.block", f"stages.{i}"
        slope = reader.slope(f"{source}.0", width)
        scale, shift = _conditioning(reader, f"decoder.sr_cond_model.{at + i}", bucket, width, config)
        state |= {f"{ours}.alpha": slope * scale, f"{ours}.shift": slope * shift}
        transposed = reader.conv(f"{source}.1", width, width // 2, 2 * rate, outputs=width // 2)
        state |= _dense(f"{ours}.conv", _untransposed(transposed, rate), slope)
        width //= 2
        units, ahead = _units(reader, [f"{source}.{j}" for j in (2, 3, 4)], f"{ours}.units", width, config.depthwise)
        state |= units
        state[f"{ours}.conv.linear.bias"] += ahead.repeat(rate)
    at += len(config.decoder_rates)
    state["alpha"] = reader.slope(f"decoder.model.{at}", width)
    return state | _dense("last", reader.conv(f"decoder.model.{at + 1}", 1, width, 7), state["alpha"])


def _units(reader: _Reader, sources: list[str], ours: str, width: int, depthwise: bool) -> tuple[dict[str, Tensor], Tensor]:
    """Three residual units, and the biases `[width]` that their input must bring along.

    The inner snake's slope goes into the convolutions on both sides of it.
    """
    state: dict[str, Tensor] = {}
    ahead = torch.zeros(width, dtype=reader.dtype)
    for i, source in reversed([*enumerate(sources)]):
        outer, inner = reader.slope(f"{source}.block.0", width), reader.slope(f"{source}.block.2", width)
        weight, bias = reader.conv(f"{source}.block.1", width, 1 if depthwise else width, 7)
        conv = Conv(weight * inner[:, None, None], bias * inner)
        point = reader.conv(f"{source}.block.3", width, width, 1)
        ahead = ahead + point.bias
        state |= {f"{ours}.{i}.alpha": outer, f"{ours}.{i}.shift": -outer * ahead}
        state |= (_depthwise if depthwise else _dense)(f"{ours}.{i}.conv", conv, outer)
        state[f"{ours}.{i}.point"] = (point.weight.squeeze(2) / inner).contiguous()
    return state, ahead


def _dense(name: str, conv: Conv, slope: Tensor | None = None) -> dict[str, Tensor]:
    """`[outputs, inputs, kernel]` as the matrix of `Dense`, for inputs that carry `slope`."""
    weight = conv.weight if slope is None else conv.weight / slope[:, None]
    return {f"{name}.linear.weight": weight.transpose(1, 2).flatten(1).contiguous(), f"{name}.linear.bias": conv.bias}


def _depthwise(name: str, conv: Conv, slope: Tensor | None = None) -> dict[str, Tensor]:
    weight = conv.weight if slope is None else conv.weight / slope[:, None, None]
    return {f"{name}.weight": weight.unsqueeze(2).contiguous(), f"{name}.bias": conv.bias}


def _untransposed(conv: Conv, rate: int) -> Conv:
    """A transposed `[inputs, outputs, 2 * rate]` as a convolution of 2: step `rate * t + j` sees inputs `t - 1` and `t`."""
    inputs, outputs, _ = conv.weight.shape
    newer_first = conv.weight.view(inputs, outputs, 2, rate)
    weight = newer_first.flip(2).permute(3, 1, 0, 2).reshape(rate * outputs, inputs, 2)
    return Conv(weight, conv.bias.repeat(rate))


def _bucket(reader: _Reader, config: VaeConfig) -> int:
    """Which conditioning the output rate selects."""
    if config.rate_boundaries is None:
        return 0
    boundaries = reader.take("decoder.sr_bin_boundaries", len(config.rate_boundaries))
    return int(torch.bucketize(float(config.sample_rate), boundaries))


def _conditioning(reader: _Reader, name: str, bucket: int, width: int, config: VaeConfig) -> tuple[Tensor, Tensor]:
    """Scale and shift `[width]` that a stage's input gets."""
    if config.rate_boundaries is None:
        return torch.ones(width, dtype=reader.dtype), torch.zeros(width, dtype=reader.dtype)
    buckets = len(config.rate_boundaries) + 1
    if config.rate_conditioning == "add":
        return torch.ones(width, dtype=reader.dtype), reader.take(f"{name}.cond_embed.weight", buckets, width)[bucket]
    scale = reader.take(f"{name}.scale_embed.weight", buckets, width)[bucket]
    return scale, reader.take(f"{name}.bias_embed.weight", buckets, width)[bucket]
