"""Noise as a function of (seed, step) alone: the same in any batch, row, process or restart; neighbouring seeds share nothing.

Philox (Salmon et al., 2011) keyed by the seed, its counter set by the step; normals by Box and Muller's transform from the raw
words, so that no library's choice of method enters.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAX_SEED = 2**63 - 1


def draw_seed() -> int:
    """A fresh seed in [0, 2**32): short enough to read out and type in."""
    return secrets.randbits(32)


def patch_noise(seed: int, step: int, patch_size: int, latent_dim: int) -> NDArray[np.floating[Any]]:
    """Standard normal float64 `[patch_size, latent_dim]` of one step of one seed."""
    noise: NDArray[np.floating[Any]] = patch_noises([(seed, step)], patch_size, latent_dim)[0]
    return noise


def patch_noises(of: Sequence[tuple[int, int]], patch_size: int, latent_dim: int) -> NDArray[np.floating[Any]]:
    """`[N, patch_size, latent_dim]` of N seeds and steps: each what it is alone."""
    count = patch_size * latent_dim
    half = (count + 1) // 2
    uniform = ((_words(of, 2 * half) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[:, :half])), 2.0 * np.pi * uniform[:, half:]
    normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return normal[:, :count].reshape(len(of), patch_size, latent_dim)


def _words(of: Sequence[tuple[int, int]], count: int) -> NDArray[np.uint64]:
    """One generator, set to each seed and step in turn: making one takes longer than drawing from it."""
    philox = np.random.Philox(key=[0, 0], counter=[0, 0, 0, 0])
    state = philox.state
    words = np.empty((len(of), count), np.uint64)
    for row, (seed, step) in enumerate(of):
        state["state"] = {"key": np.array([seed, 0], np.uint64), "counter": np.array([0, 0, 0, step], np.uint64)}
        philox.state = state
        words[row] = philox.random_raw(count)
    return words
