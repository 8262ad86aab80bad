"""Speaks with a voice in training, many texts at once: the reference's algorithm, one row per text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from .codec import load_codec
from .model import PATCH, Voice
from .tokenizer import AUDIO_START, build
from .train import new_voice

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

MIN_PATCH = 2  # a stop counts only after this patch


@dataclass(frozen=True)
class Options:
    """How to sample; the defaults are the reference's."""

    timesteps: int = 10
    cfg: float = 2.0
    ratio: float = 6.0  # patches per text token before a request counts as a run-on


@dataclass(frozen=True)
class Spoken:
    """One utterance: its patches [n, PATCH, latent], and whether it stopped by itself."""

    patches: Tensor
    stopped: bool


def schedule(timesteps: int) -> list[float]:
    """The solver's times from one to zero, bent towards one (sway sampling)."""
    times = torch.linspace(1, 0, timesteps + 1)
    return (times + torch.cos(torch.pi / 2 * times) - 1 + times).tolist()


def flow(voice: Voice, noise: Tensor, mu: Tensor, before: Tensor, options: Options) -> Tensor:
    """Euler with classifier-free guidance; the first step stays where it is (CFG-zero*)."""
    x, times = noise, schedule(options.timesteps)
    idle = max(1, int(len(times) * 0.04))
    both, twice = torch.cat((mu, torch.zeros_like(mu))), torch.cat((before, before))
    for number in range(idle, options.timesteps):
        t = torch.full((2 * len(x),), times[number])
        with_text, without = voice.dit(torch.cat((x, x)), both, t, twice).chunk(2)
        flat, other = with_text.flatten(1), without.flatten(1)
        scale = ((flat * other).sum(1) / (other.square().sum(1) + 1e-8))[:, None, None]
        velocity = without * scale + options.cfg * (with_text - without * scale)
        x = x - (times[number] - times[number + 1]) * velocity
    return x


@torch.inference_mode()
def speak(voice: Voice, texts: list[list[int]], seed: int, options: Options = Options()) -> list[Spoken]:
    """Zero-shot speech for each text (ids without the audio start). Row k's noise depends on seed + k alone."""
    rows, prompts = len(texts), [[*ids, AUDIO_START] for ids in texts]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    caps = [int(options.ratio * len(ids) + 10) for ids in texts]
    longest = int(lengths.max()) + max(caps)
    tokens = torch.zeros(rows, int(lengths.max()), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    positions = torch.arange(tokens.shape[1]).expand(rows, -1)
    cache, deeper = voice.base_lm.new_cache(rows, longest), voice.residual_lm.new_cache(rows, longest)
    bias = _causal(positions, longest)
    hidden = voice.base_lm.extend(voice.base_lm.embed_tokens(tokens), positions, bias, cache)
    residual = voice.residual_lm.extend(voice.fuse(hidden, torch.zeros_like(hidden)), positions, bias, deeper)
    last = torch.arange(rows), lengths - 1
    h, r = hidden[last], residual[last]
    before = torch.zeros(rows, PATCH, voice.shape.latent)
    generators = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
    made: list[list[Tensor]] = [[] for _ in texts]
    stopped, live = [False] * rows, [True] * rows
    for step in range(max(caps)):
        noise = torch.stack([torch.randn(voice.shape.latent, PATCH, generator=g).T for g in generators])
        before = flow(voice, noise, voice.mu(h, r), before, options)
        stop = voice.stop_logits(h).argmax(-1).tolist()
        for row in range(rows):
            if live[row]:
                made[row].append(before[row])
                stopped[row] = step > MIN_PATCH and stop[row] == 1
                live[row] = not stopped[row] and step + 1 < caps[row]
        if not any(live):
            break
        positions = (lengths + step).clamp(max=longest - 1)[:, None]
        embedded = voice.embed_patches(before)[:, None]
        bias = _causal(positions, longest)
        hidden = voice.fsq_layer(voice.base_lm.extend(embedded, positions, bias, cache))
        residual = voice.residual_lm.extend(voice.fuse(hidden, embedded), positions, bias, deeper)
        h, r = hidden[:, 0], residual[:, 0]
    return [Spoken(torch.stack(patches), end) for patches, end in zip(made, stopped, strict=True)]


def _causal(positions: Tensor, longest: int) -> Tensor:
    allowed = torch.arange(longest) <= positions[..., None]
    return torch.where(allowed, 0.0, -math.inf)[:, None]


class Speaker:
    """A voice, its tokenizer and its codec: texts in, samples at 16 kHz out."""

    def __init__(self, weights: dict[str, Tensor], codec: Path) -> None:
        self.codec = load_codec(codec)
        self.voice = new_voice(weights["feat_encoder.in_proj.weight"].shape[1]).eval()
        self.voice.load_state_dict(weights, strict=False)
        self._tokenizer = build()

    @classmethod
    def from_folder(cls, folder: Path) -> Speaker:
        """The exported checkpoint, in float32."""
        weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
        return cls(weights, folder / "audiovae.safetensors")

    def __call__(self, texts: list[str], seed: int = 0, options: Options = Options()) -> list[tuple[np.ndarray, bool]]:
        """Samples of each text, and whether it stopped by itself."""
        spoken = speak(self.voice, [self._tokenizer.encode(text).ids for text in texts], seed, options)
        return [(self.decode(one.patches), one.stopped) for one in spoken]

    @torch.inference_mode()
    def decode(self, patches: Tensor) -> np.ndarray:
        """Patches [n, PATCH, latent] to samples."""
        return self.codec.decode(patches.flatten(0, 1).T[None])[0, 0].numpy()  # type: ignore[operator, no-any-return]
