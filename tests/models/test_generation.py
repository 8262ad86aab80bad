"""A whole generation equals the reference's, in float64, from the same folder and the same noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.pair import DOUBLE, Pair, load_pair, our_latents, their_latents
from tools.make_checkpoint import KINDS, make

from evervox.conditioning.layout import PromptClip, lay_out
from evervox.request import Sampling

if TYPE_CHECKING:
    from evervox.runner.inputs import Inputs

PATCHES = 30
TEXTS = {"one character": [250], "mixed": [201, 260, 333, 401, 350, 222, 477, 300, 105]}


@cache
def pair(kind: str) -> Pair:
    folder = make(kind, Path(mkdtemp(prefix="evervox-test-")), changes={"lm_config": {"use_mup": kind == "voxcpm1.5"}})
    return load_pair(folder, kind, DOUBLE)


def clip(of: Pair, patches: int, seed: int) -> PromptClip:
    config = of.ours.config
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, patches * config.encoder_samples_per_patch).astype(np.float32)
    return PromptClip(bytes([seed] * 16), patches, samples)


def prompted(of: Pair, text: list[int], layout: str, sampling: Sampling) -> Inputs:
    reference = clip(of, 7, 1) if layout in ("reference", "both") else None
    prompt = clip(of, 5, 2) if layout in ("continuation", "both") else None
    laid = lay_out(text, len(text), reference=reference, prompt=prompt, max_context=of.ours.config.context_patches)
    return of.ours.inputs(laid, sampling)


@pytest.mark.parametrize("layout", ["zero-shot", "continuation", "reference", "both"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_latents_equal_the_references(kind: str, text: str, layout: str) -> None:
    of = pair(kind)
    if layout in ("reference", "both") and not of.ours.config.has_reference:
        pytest.skip("this kind has no reference layout")
    sampling = Sampling(seed=5, timesteps=10, cfg=2.0, temperature=1.0, min_patches=PATCHES, max_patches=PATCHES)
    inputs = prompted(of, TEXTS[text], layout, sampling)
    ours, theirs = our_latents(of, inputs), their_latents(of, inputs)
    assert len(theirs) == PATCHES
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("timesteps", "cfg"), [(2, 1.0), (4, 3.0), (60, 1.5)])
def test_other_schedules(kind: str, timesteps: int, cfg: float) -> None:
    of = pair(kind)
    sampling = Sampling(seed=9, timesteps=timesteps, cfg=cfg, temperature=1.0, min_patches=8, max_patches=8)
    inputs = prompted(of, TEXTS["mixed"], "zero-shot", sampling)
    np.testing.assert_allclose(our_latents(of, inputs), their_latents(of, inputs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stop_step_is_the_references(kind: str) -> None:
    """Random stop heads fire often enough that 20 seeds see stops at many steps, and one at the first step allowed."""
    of = pair(kind)
    lengths = set()
    for seed in range(20):
        sampling = Sampling(seed=seed, timesteps=3, cfg=2.0, temperature=1.0, min_patches=2, max_patches=12)
        inputs = prompted(of, TEXTS["mixed"][: 1 + seed % 9], "zero-shot", sampling)
        ours, theirs = our_latents(of, inputs), their_latents(of, inputs)
        assert len(ours) == len(theirs)
        assert len(ours) > sampling.min_patches + 1
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        lengths.add(len(ours))
    assert len(lengths) > 1, "no stop was seen: the test shows nothing"
