"""A checkpoint loaded in 8-bit integers says nearly the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tools.make_checkpoint import KINDS, make

from evervox.conditioning.layout import lay_out
from evervox.errors import ConfigError
from evervox.layers.quantized import Int8Linear, can_quantize
from evervox.request import Sampling
from evervox.runner.load import load
from evervox.runner.simple import SimpleGenerator

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny checkpoints have no layer that is large enough otherwise."""
    monkeypatch.setattr("evervox.layers.quantized.SMALLEST", 0)


@pytest.mark.skipif(not can_quantize(), reason="this CPU or build of torch has no 8-bit kernels")
@pytest.mark.parametrize("kind", KINDS)
def test_first_patch_is_near(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path)
    prompt = lay_out([201, 260, 333, 401, 350], 5, reference=None, prompt=None, max_context=2)
    sampling = Sampling(seed=1, timesteps=10, cfg=2.0, temperature=1.0, min_patches=1, max_patches=1)
    first = []
    for dtype in ("float32", "int8"):
        generator = SimpleGenerator(load(tmp_path, dtype=dtype, device="cpu"))
        first.append(next(iter(generator.patches(generator.inputs(prompt, sampling)))).latents.float().numpy())
    assert np.linalg.norm(first[1] - first[0]) / np.linalg.norm(first[0]) < 0.1


@pytest.mark.skipif(not can_quantize(), reason="this CPU or build of torch has no 8-bit kernels")
def test_only_linear_layers_of_the_model_are_integers(tmp_path: Path) -> None:
    loaded = load(make("voxcpm", tmp_path), dtype="int8", device="cpu")
    assert any(isinstance(m, Int8Linear) for m in loaded.model.modules())
    assert not any(isinstance(m, Int8Linear) for m in loaded.vae.modules())
    assert loaded.model.dtype is torch.float32


def test_without_the_kernels_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("voxcpm", tmp_path)
    monkeypatch.setattr("evervox.runner.load.can_quantize", lambda: False)
    with pytest.raises(ConfigError, match="int8"):
        load(tmp_path, dtype="int8", device="cpu")
