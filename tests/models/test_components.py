"""Each part of the model equals the reference's part, in float32, given the same inputs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

import pytest
import torch
from tests.models.pair import SINGLE, Pair, load_pair, same_noise
from tools.make_checkpoint import KINDS, make

from evervox.layers.attention import ContiguousKV
from evervox.models.voxcpm.flow import Steps, schedule

TOLERANCE = 1e-4
"""Largest difference over the largest output."""


@cache
def pair(kind: str) -> Pair:
    folder = make(kind, Path(mkdtemp(prefix="evervox-test-")), seed=3, changes={"lm_config": {"use_mup": kind != "voxcpm"}})
    return load_pair(folder, kind, SINGLE)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= TOLERANCE * float(theirs.abs().max())


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=KINDS)
def of(request: pytest.FixtureRequest) -> Pair:
    found: Pair = pair(request.param)
    return found


@torch.inference_mode()
def test_local_encoder_and_its_projection(of: Pair) -> None:
    patches = random(6, of.ours.config.patch_size, of.ours.config.latent_dim)
    theirs = of.theirs.enc_to_lm_proj(of.theirs.feat_encoder(patches[None]))[0]
    close(of.ours.model.embed_patches(patches), theirs)


@torch.inference_mode()
def test_dit_velocity(of: Pair) -> None:
    config, dit, estimator = of.ours.config, of.ours.model.dit, of.theirs.feat_decoder.estimator
    x, cond = random(5, config.patch_size, config.latent_dim), random(5, config.patch_size, config.latent_dim, seed=1)
    mu = random(5, 2 if config.has_reference else 1, config.dit.hidden, seed=2)
    t, dt = torch.rand(5, generator=torch.Generator().manual_seed(3)), torch.zeros(5)
    theirs = estimator(x.transpose(1, 2), mu.flatten(1), t, cond.transpose(1, 2), dt).transpose(1, 2)
    close(dit(dit.in_proj(x), mu, dit.embed_time(t, dt), dit.cond_proj(cond)), theirs)


@torch.inference_mode()
def test_solver_rows_with_their_own_steps_and_guidance(of: Pair) -> None:
    """Three rows in one batch, against three runs of the reference's solver."""
    config, model = of.ours.config, of.ours.model
    timesteps, cfg = [20, 10, 3], [1.0, 2.0, 3.5]
    mu = random(3, 2 if config.has_reference else 1, config.dit.hidden)
    cond, z = random(3, config.patch_size, config.latent_dim, seed=1), random(3, config.patch_size, config.latent_dim, seed=2)
    ours = model.next_patch(mu, cond, z, Steps.of(timesteps, SINGLE), torch.tensor(cfg))
    for row in range(3):
        with mock.patch("torch.randn", return_value=z[row].T[None].clone()):
            theirs = of.theirs.feat_decoder(
                mu[row].flatten()[None],
                timesteps[row],
                config.patch_size,
                cond[row].T[None],
                cfg_value=cfg[row],
            )
        close(ours[row], theirs[0].T)


@torch.inference_mode()
def test_language_models_prefill_and_step(of: Pair) -> None:
    """A prefill of 9 slots, text and audio, then two steps: the LM, FSQ, fusion, the residual LM and the stop logits."""
    model, theirs, config = of.ours.model, of.theirs, of.ours.config
    x = random(11, config.lm.hidden)
    is_audio = torch.tensor([False] * 6 + [True] * 5)
    kv = [ContiguousKV(s, 16, x.device, x.dtype) for s in (config.lm, config.residual)]
    hidden, residual = model.language(x[:9], is_audio[:9], torch.arange(9), *kv)
    lm_out, lm_cache = theirs.base_lm(inputs_embeds=x[None, :9], is_causal=True)
    theirs.base_lm.kv_cache.fill_caches(lm_cache)
    mask = is_audio[None, :9, None].float()
    lm_hidden = theirs.fsq_layer(lm_out) * mask + lm_out * (1 - mask)
    residual_out, residual_cache = theirs.residual_lm(inputs_embeds=fuse(of, lm_hidden, mask * x[None, :9]), is_causal=True)
    theirs.residual_lm.kv_cache.fill_caches(residual_cache)
    close(hidden, lm_hidden[0])
    close(residual, residual_out[0])
    close(model.stop_logits(hidden), theirs.stop_head(theirs.stop_actn(theirs.stop_proj(lm_hidden)))[0])
    for slot in (9, 10):
        for cache_ in kv:
            cache_.start = slot
        hidden, residual = model.language(x[slot : slot + 1], is_audio[slot : slot + 1], torch.tensor([slot]), *kv)
        at = torch.tensor([slot])
        lm_step = theirs.fsq_layer(theirs.base_lm.forward_step(x[slot : slot + 1], at).clone())
        close(hidden, lm_step)
        close(residual, theirs.residual_lm.forward_step(fuse(of, lm_step, x[slot : slot + 1]), at).clone())


def fuse(of: Pair, hidden: torch.Tensor, patch: torch.Tensor) -> torch.Tensor:
    if of.ours.config.has_reference:
        out: torch.Tensor = of.theirs.fusion_concat_proj(torch.cat((hidden, patch), dim=-1))
        return out
    return hidden + patch


@torch.inference_mode()
def test_vae_of_the_whole_checkpoint(of: Pair) -> None:
    config = of.ours.config
    audio = random(1, 5 * config.encoder_samples_per_patch).clamp(-1, 1)
    close(of.ours.vae.encode(audio), of.theirs.audio_vae.encode(audio, config.vae.encoder_sample_rate).transpose(1, 2))
    latents = random(1, 12, config.latent_dim)
    close(of.ours.vae.decode(latents), of.theirs.audio_vae.decode(latents.transpose(1, 2))[:, 0])


def test_schedule_counts() -> None:
    """The first step is skipped; from 49 timesteps on, the first two."""
    assert [len(schedule(n, SINGLE).t) for n in (2, 10, 48, 49)] == [1, 9, 47, 47]


def test_our_noise_reaches_the_reference() -> None:
    with same_noise(4):
        first, second = (torch.randn((1, 8, 2), dtype=SINGLE) for _ in range(2))
    assert not torch.equal(first, second)
