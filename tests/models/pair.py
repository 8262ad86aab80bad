"""Ours and the reference's model from one folder, in float64, fed the same noise."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from tests.oracle import quiet, reference

from evervox.runner.noise import patch_noise
from evervox.runner.simple import SimpleGenerator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from evervox.runner.inputs import Inputs

DOUBLE, SINGLE = torch.float64, torch.float32


@dataclass(frozen=True)
class Pair:
    ours: SimpleGenerator
    theirs: Any


def load_pair(folder: Path, kind: str, dtype: torch.dtype) -> Pair:
    name = {DOUBLE: "float64", SINGLE: "float32"}[dtype]
    modules = reference()
    module = modules.model2 if kind == "voxcpm2" else modules.model
    cls = module.VoxCPM2Model if kind == "voxcpm2" else module.VoxCPMModel
    with quiet():
        theirs = cls.from_local(str(folder), optimize=False, device="cpu").to(dtype)
    for lm in (theirs.base_lm, theirs.residual_lm):
        lm.setup_cache(1, 256, "cpu", dtype)
    return Pair(SimpleGenerator.load(folder, dtype=name, device="cpu"), theirs)


@contextmanager
def same_noise(seed: int) -> Iterator[None]:
    """`torch.randn` gives our noise: step after step, in the reference's order of dimensions."""
    steps = iter(range(10_000))

    def randn(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        _, dim, frames = shape
        return torch.from_numpy(patch_noise(seed, next(steps), frames, dim).T.copy())[None].to(options["dtype"])

    with mock.patch("torch.randn", randn):
        yield


def their_latents(pair: Pair, inputs: Inputs) -> np.ndarray[Any, Any]:
    """The reference's own loop over the same prompt: `[patches, patch_size, latent_dim]`."""
    sampling, config = inputs.sampling, pair.ours.config
    feats = np.zeros((len(inputs.tokens), config.patch_size, config.latent_dim))
    feats[inputs.is_audio] = inputs.features
    dtype = pair.ours.model.dtype
    with same_noise(sampling.seed), quiet():
        _, latents = pair.theirs.inference(
            torch.from_numpy(inputs.tokens)[None].long(),
            torch.from_numpy(~inputs.is_audio)[None].int(),
            torch.from_numpy(feats)[None].to(dtype),
            torch.from_numpy(inputs.is_audio)[None].int(),
            min_len=sampling.min_patches,
            max_len=sampling.max_patches,
            inference_timesteps=sampling.timesteps,
            cfg_value=sampling.cfg,
        )
    context = inputs.context_patches if config.name == "VoxCPM" else 0
    return np.asarray(latents)[context:]


def our_latents(pair: Pair, inputs: Inputs) -> np.ndarray[Any, Any]:
    return np.stack([p.latents.numpy() for p in pair.ours.patches(inputs)])
