"""The scale in which the language model sees latents.

A dimension whose spread is below FLOOR carries nothing (the codec's KL term has switched it off): it is dropped, and its mean is
folded into the decoder. The others get zero mean and unit variance. `fold` moves all of this into the codec's own weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathlib import Path

FLOOR = 0.1


@dataclass(frozen=True)
class Scale:
    """Kept dimensions, and the mean and deviation of all."""

    kept: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def measure(cls, shard: Path) -> Scale:
        """From one shard of latents: always the first, so that more data does not move the scale."""
        with np.load(shard) as data:
            latents = torch.from_numpy(data["latents"].astype(np.float32))
        deviation = latents.std(0)
        return cls(torch.nonzero(deviation > FLOOR)[:, 0], latents.mean(0), deviation)

    def apply(self, latents: Tensor) -> Tensor:
        """Raw latents [..., all dimensions] to normalised [..., kept dimensions]."""
        return (latents[..., self.kept] - self.mean[self.kept]) / self.deviation[self.kept]


def fold(state: dict[str, Tensor], scale: Scale) -> dict[str, Tensor]:
    """The codec's weights with normalised, kept latents between encoder and decoder; it then decodes as before.

    The decoder's first layers are depthwise then 1x1, so a dropped dimension is a constant of the 1x1 layer. Before the first
    frame the decoder pads with zeros, which now stand for the mean: the first 0.1 s may differ by a trace.
    """
    new, kept = dict(state), scale.kept
    mean, deviation = scale.mean, scale.deviation[kept]
    encoder, depthwise, mixing = "encoder.fc_mu", "decoder.model.0", "decoder.model.1"
    new[f"{encoder}.weight_v"] = state[f"{encoder}.weight_v"][kept]
    new[f"{encoder}.weight_g"] = state[f"{encoder}.weight_g"][kept] / deviation[:, None, None]
    new[f"{encoder}.bias"] = (state[f"{encoder}.bias"][kept] - mean[kept]) / deviation
    for part in ("weight_v", "weight_g", "bias"):
        new[f"encoder.fc_logvar.{part}"] = state[f"encoder.fc_logvar.{part}"][kept]
    constant = plain_weight(state, depthwise).sum((1, 2)) * mean + state[f"{depthwise}.bias"]
    new[f"{depthwise}.weight_v"] = state[f"{depthwise}.weight_v"][kept]
    new[f"{depthwise}.weight_g"] = state[f"{depthwise}.weight_g"][kept] * deviation[:, None, None]
    new[f"{depthwise}.bias"] = constant[kept]
    mixer = plain_weight(state, mixing)
    dropped = torch.ones(len(mean), dtype=torch.bool)
    dropped[kept] = False
    new[f"{mixing}.bias"] = state[f"{mixing}.bias"] + mixer[:, dropped, 0] @ constant[dropped]
    new[f"{mixing}.weight_v"] = mixer[:, kept].clone()
    new[f"{mixing}.weight_g"] = mixer[:, kept].flatten(1).norm(dim=1)[:, None, None]
    return new


def plain_weight(state: dict[str, Tensor], name: str) -> Tensor:
    """The weight that a weight-norm pair stands for."""
    direction = state[f"{name}.weight_v"]
    return direction * (state[f"{name}.weight_g"] / direction.flatten(1).norm(dim=1)[:, None, None])
