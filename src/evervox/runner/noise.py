"""Noise as a function of (seed, step) alone: the same in any batch, row, process or restart; neighbouring seeds share nothing.

Philox (Salmon et al., 2011) keyed by the seed, its counter set by the step; normals by Box and Muller's transform from the raw
words, so that no library's choice of method enters.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_SEED = 2**63 - 1


def draw_seed() -> int:
    """A fresh seed in [0, 2**32): short enough to read out and type in."""
    return secrets.randbits(32)


def patch_noise(seed: int, step: int, patch_size: int, latent_dim: int) -> NDArray[np.floating[Any]]:
    """Standard normal float64 `[patch_size, latent_dim]` of one step of one seed."""
    count = patch_size * latent_dim
    half = (count + 1) // 2
    words = np.random.Philox(key=[seed, 0], counter=[0, 0, 0, step]).random_raw(2 * half)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:half])), 2.0 * np.pi * uniform[half:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count].reshape(patch_size, latent_dim)
