"""One request at a time over contiguous KV: the slow twin that every fast path is tested against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from evervox.layers.attention import ContiguousKV
from evervox.models.voxcpm.flow import Steps
from evervox.request import AudioChunk, Finish
from evervox.runner.inputs import Inputs
from evervox.runner.load import Loaded, load
from evervox.runner.noise import MAX_SEED, patch_noise
from evervox.runner.precision import exact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from evervox.conditioning.layout import Prompt, PromptClip
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.models.voxcpm.vae import DecoderTails
    from evervox.request import FinishReason, Sampling

BAD_CASE_TRIES, BAD_CASE_RATIO = 3, 6
"""An utterance of this many patches per text token has run on."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One generated patch `[patch_size, latent_dim]`, and why it is the last (None when it is not)."""

    latents: Tensor
    ended: FinishReason | None


class SimpleGenerator:
    """Loads a checkpoint and speaks one prompt at a time."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.config: VoxConfig = loaded.config
        self.model, self.vae = loaded.model, loaded.vae

    @classmethod
    def load(cls, folder: Path, dtype: str = "auto", device: str = "auto") -> SimpleGenerator:
        """Raises `CheckpointError` or `ConfigError`."""
        return cls(load(folder, dtype=dtype, device=device))

    @torch.inference_mode()
    def encode(self, clip: PromptClip) -> NDArray[np.floating[Any]]:
        """Latents `[patches, patch_size, latent_dim]` of a prepared clip."""
        if clip.latents is not None:
            return clip.latents
        assert clip.samples is not None, "a clip has samples or latents"
        return encode_samples(self.loaded, clip.samples)

    def inputs(self, prompt: Prompt, sampling: Sampling) -> Inputs:
        """The runner's form of a prompt."""
        config = self.config
        features = [self.encode(clip) for clip in prompt.clips]
        empty = np.zeros((0, config.patch_size, config.latent_dim), np.float32)
        joined = np.concatenate(features) if features else empty
        return Inputs(prompt.tokens, prompt.is_audio, joined, prompt.context_patches, sampling)

    @torch.inference_mode()
    def patches(self, inputs: Inputs) -> Iterator[Patch]:
        """Generate patch by patch until the model stops or `max_patches` is reached."""
        model, sampling = self.model, inputs.sampling
        slots = len(inputs.tokens) + sampling.max_patches
        kv = [ContiguousKV(s, slots, model.device, model.dtype) for s in (self.config.lm, self.config.residual)]
        features = torch.from_numpy(inputs.features).to(model.device, model.dtype)
        is_audio = torch.from_numpy(inputs.is_audio).to(model.device)
        x = model.embed_text(torch.from_numpy(inputs.tokens).long().to(model.device))
        if len(features):
            x[is_audio] = model.embed_patches(features)
        previous = features[-1] if inputs.is_audio[-1] else x.new_zeros(self.config.patch_size, self.config.latent_dim)
        start = 0
        for step in range(sampling.max_patches):
            hidden, residual = self._advance(x, is_audio, start, kv)
            start += len(x)
            previous = self._solve(hidden, residual, previous, sampling, step)
            stop = int(model.stop_logits(hidden).argmax(-1)) == 1 and step > sampling.min_patches
            yield Patch(previous, "stop" if stop else "length" if step + 1 == sampling.max_patches else None)
            if stop:
                return
            x, is_audio = model.embed_patches(previous[None]), is_audio.new_ones(1)

    def _advance(self, x: Tensor, is_audio: Tensor, start: int, kv: list[ContiguousKV]) -> tuple[Tensor, Tensor]:
        for cache in kv:
            cache.start = start
        positions = torch.arange(start, start + len(x), device=x.device)
        hidden, residual = self.model.language(x, is_audio, positions, kv[0], kv[1])
        return hidden[-1:], residual[-1:]

    def _solve(self, hidden: Tensor, residual: Tensor, previous: Tensor, sampling: Sampling, step: int) -> Tensor:
        model, config = self.model, self.config
        noise = patch_noise(sampling.seed, step, config.patch_size, config.latent_dim)
        z = torch.from_numpy(noise).to(model.device, model.dtype) * sampling.temperature
        steps = Steps.of([sampling.timesteps], model.dtype).to(model.device)
        cfg = z.new_tensor([sampling.cfg])
        return model.next_patch(model.condition(hidden, residual), previous[None], z[None], steps, cfg)[0]

    @torch.inference_mode()
    def stream(self, prompt: Prompt, sampling: Sampling) -> Iterator[AudioChunk]:
        """One chunk per patch; the last one carries `finish`."""
        inputs = self.inputs(prompt, sampling)
        tails = self.vae.new_tails(1)
        if inputs.context_patches:
            context = torch.from_numpy(inputs.features[-inputs.context_patches :]).to(self.model.device)
            self._decode(context.flatten(0, 1), tails)
        start = 0
        for step, patch in enumerate(self.patches(inputs)):
            samples = self._decode(patch.latents, tails)
            finish = None
            if patch.ended is not None:
                finish = Finish(patch.ended, sampling.seed, step + 1, prompt.num_slots)
            yield AudioChunk(samples, start, self.config.sample_rate, finish)
            start += len(samples)

    def _decode(self, frames: Tensor, tails: DecoderTails) -> NDArray[np.float32]:
        audio = self.vae.decode(frames[None].to(self.vae.dtype), tails)[0]
        return audio.to("cpu", torch.float32).numpy()

    def speak(self, prompt: Prompt, sampling: Sampling) -> AudioChunk:
        """The whole utterance. One that ran on is tried again with the next seed, up to three times in all."""
        for attempt in range(BAD_CASE_TRIES):
            again = replace(sampling, seed=(sampling.seed + attempt) % (MAX_SEED + 1))
            chunks = list(self.stream(prompt, again))
            finish = chunks[-1].finish
            if finish is None or finish.num_patches < BAD_CASE_RATIO * prompt.target_tokens:
                break
        return AudioChunk(np.concatenate([c.samples for c in chunks]), 0, self.config.sample_rate, finish)


@torch.inference_mode()
def encode_samples(loaded: Loaded, samples: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
    """`[patches * encoder_samples_per_patch]` samples -> latents `[patches, patch_size, latent_dim]`."""
    audio = torch.from_numpy(samples).to(loaded.model.device, loaded.vae.dtype)
    with exact(loaded.model.device):
        frames = loaded.vae.encode(audio[None])[0]
    latents: NDArray[np.floating[Any]] = frames.view(-1, loaded.config.patch_size, loaded.config.latent_dim).cpu().numpy()
    return latents
