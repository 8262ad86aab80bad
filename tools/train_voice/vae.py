"""Trains the codec from nothing on random crops of the teacher's speech.

No adversary: spectra at four sizes are enough to be understood.

The floor of the log spectra decides: with one near zero the loss is spent on noise that nobody hears.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from .codec import HOP, SAMPLE_RATE, new_codec

if TYPE_CHECKING:
    from pathlib import Path

CROP, BATCH = 24 * HOP, 8
MELS = {256: 20, 512: 40, 1024: 80, 2048: 80}
KL, RATE, SAVE_EVERY = 0.003, 1.2e-3, 240.0


def mel_filters(n_fft: int, bands: int) -> Tensor:
    """Triangular filters [bands, bins], equally spaced on the mel scale."""

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    edges = 700 * (10 ** (torch.linspace(mel(20), mel(SAMPLE_RATE / 2), bands + 2) / 2595) - 1)
    bins = torch.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0)


def spectral_loss(made: Tensor, real: Tensor) -> Tensor:
    """Distance of two batches of sound [n, samples]: log-mel, spectral convergence and log-magnitude."""
    total = made.new_zeros(())
    for n_fft, bands in MELS.items():
        window, floor, filters = torch.hann_window(n_fft), n_fft * 1e-4, mel_filters(n_fft, bands)
        a, b = (torch.stft(x, n_fft, n_fft // 4, window=window, return_complex=True).abs() for x in (made, real))
        log_mel = F.l1_loss((filters @ a + floor).log(), (filters @ b + floor).log())
        convergence = (a - b).norm() / b.norm().clamp(min=1e-3)
        total = total + log_mel + 0.5 * convergence + 0.2 * F.l1_loss((a + floor).log(), (b + floor).log())
    return total / len(MELS)


def codec_loss(codec: torch.nn.Module, sound: Tensor, noise: Tensor) -> Tensor:
    """Reconstruction of [n, samples] through a sampled latent, and its KL to a unit normal."""
    hidden = codec.encoder.block(sound[:, None])  # type: ignore[operator, union-attr]
    mean, logvar = codec.encoder.fc_mu(hidden), codec.encoder.fc_logvar(hidden).clamp(-8, 4)  # type: ignore[operator, union-attr]
    made = codec.decoder(mean + (logvar / 2).exp() * noise, None)[:, 0]  # type: ignore[operator]
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    return spectral_loss(made, sound) + KL * kl


class Crops:
    """Random crops of the shards' speech, a function of the step."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(path for path in folder.glob("[0-9]*.npz") if ".part" not in path.name)
        self._speech = np.concatenate([np.load(path)["samples"] for path in paths])

    def batch(self, step: int) -> Tensor:
        """[BATCH, CROP], each crop with a random gain."""
        rng = np.random.default_rng(step)
        starts = rng.integers(0, len(self._speech) - CROP, BATCH)
        crops = np.stack([self._speech[start : start + CROP] for start in starts]).astype(np.float32) / 32767
        return torch.from_numpy(crops * rng.uniform(0.5, 1.2, (BATCH, 1)).astype(np.float32))


def train_codec(folder: Path, data: Path, steps: int, stop_at: float | None = None) -> None:
    """Runs to `steps` or to the moment `stop_at`; a later call goes on. Leaves `audiovae.safetensors` in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    codec, crops, path = new_codec(), Crops(data), folder / "state.pt"
    optimiser = torch.optim.AdamW(codec.parameters(), lr=RATE, betas=(0.8, 0.99), weight_decay=1e-3)
    start = 0
    if path.exists():
        state: dict[str, Any] = torch.load(path, weights_only=True)
        codec.load_state_dict(state["codec"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
    saved, running = time.time(), 0.0
    for step in range(start, steps):
        torch.manual_seed(step)
        sound = crops.batch(step)
        loss = codec_loss(codec, sound, torch.randn(BATCH, codec.latent_dim, CROP // HOP))  # type: ignore[call-overload]
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(codec.parameters(), 5.0)
        cosine = 0.05 + 0.475 * (1 + math.cos(math.pi * step / steps))
        optimiser.param_groups[0]["lr"] = RATE * min((step + 1) / 50, cosine)
        optimiser.step()
        running += float(loss.detach())
        if (step + 1) % 10 == 0:
            print(f"step {step + 1} loss {running / 10:.4f}", flush=True)
            running = 0.0
        done = step + 1 == steps or (stop_at is not None and time.time() > stop_at)
        if done or time.time() - saved > SAVE_EVERY:
            _save(folder, {"step": step + 1, "codec": codec.state_dict(), "optimiser": optimiser.state_dict()})
            saved = time.time()
        if done:
            break


def _save(folder: Path, state: dict[str, Any]) -> None:
    torch.save(state, folder / "state.part")
    os.replace(folder / "state.part", folder / "state.pt")
    save_file({name: value.contiguous() for name, value in state["codec"].items()}, folder / "audiovae.safetensors")
