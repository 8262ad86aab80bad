"""The AudioVAE's decoder by its kernels: as exact as the plain layers, and how much faster."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING
from unittest.mock import patch

import torch
from tools.gpu_check.fixtures import config_of

from evervox.layers.fusing import fused_snake
from evervox.models.voxcpm import vae, vae_layers
from evervox.models.voxcpm.vae import AudioVae
from evervox.runner.precision import tf32

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import VoxConfig

ROUNDING, ROUNDING_TF32 = 1e-5, 1e-2
"""Of the output's largest value. A factor in TF32 has 11 bits."""


def random_vae(config: VoxConfig, device: torch.device) -> AudioVae:
    """Slopes around 1 and gains of a half: sines of large numbers would amplify rounding."""
    torch.manual_seed(0)
    with torch.device(device):
        made = AudioVae(config.vae).requires_grad_(False)
    for name, parameter in made.named_parameters():
        if "alpha" in name:
            parameter.normal_(1.0, 0.2)
        else:
            parameter.normal_(std=0.5 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.1)
    return made


@torch.inference_mode()
def decoder_equals_plain_layers(device: torch.device) -> str:
    """In float32 patch by patch, beside a row of NaN, against float64 and whole, which the plain layers compute; then in TF32."""
    found = []
    for size in ("2", "0.5b") if device.type == "cuda" else ("small",):
        config = config_of(size)
        model, exact = (random_vae(config, device).to(dtype) for dtype in (torch.float32, torch.float64))
        latents = torch.randn(3, 4 * config.patch_size, config.latent_dim, device=device)
        expected = exact.decode(latents.double())
        assert 0.01 < expected.abs().max() < 0.9
        with tf32(device):
            coarse = off(model.decode(latents), expected)
        whole, streamed = off(model.decode(latents), expected), off(stream(model, latents, config.patch_size), expected)
        assert max(whole, streamed) < ROUNDING, f"{size}: whole {whole:.1e}, streamed {streamed:.1e}"
        assert coarse < ROUNDING_TF32, f"{size} in TF32: {coarse:.1e}"
        found.append(f"{size} {max(whole, streamed):.1e}, in TF32 {coarse:.1e}")
    return ", ".join(found)


def stream(model: AudioVae, latents: torch.Tensor, step: int) -> torch.Tensor:
    """Decoded `step` frames at a time."""
    count, device = len(latents), latents.device
    tails, rows = model.new_tails(count + 2), torch.arange(count, -1, -1, device=device)
    tails.state[count] = float("nan")
    nothing = torch.full((1, step, latents.shape[2]), float("nan"), device=device)
    parts = [model.decode(torch.cat([nothing, part]), tails, rows)[1:] for part in torch.split(latents, step, dim=1)]
    return torch.cat(parts, dim=1)


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def decoder_ms(model: AudioVae, rows: int, frames: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of the decoder alone for one patch of each row, not recorded: with few rows that is the host's time."""
    found = {}
    for name, which in (("kernels", fused_snake), ("plain layers", lambda x: None)):
        latents, tails = torch.zeros(rows, frames, model.config.latent_dim, device=device), model.new_tails(rows)
        with patch.object(vae, "fused_snake", which), patch.object(vae_layers, "fused_snake", which), tf32(device):
            found[name] = round(median(timed_decode(model, latents, tails, device) for _ in range(10)), 3)
    return found


def timed_decode(model: AudioVae, latents: torch.Tensor, tails: vae.DecoderTails, device: torch.device) -> float:
    started = time.perf_counter()
    model.decode(latents, tails)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - started)
