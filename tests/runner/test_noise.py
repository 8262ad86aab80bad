"""Noise is normal, the same wherever it is made, and unrelated between seeds and steps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evervox.runner.noise import MAX_SEED, draw_seed, patch_noise, patch_noises

seeds, steps = st.integers(0, MAX_SEED), st.integers(0, 10_000)


@given(seed=seeds, step=steps, patch_size=st.integers(1, 4), latent_dim=st.integers(1, 64))
def test_a_function_of_seed_and_step(seed: int, step: int, patch_size: int, latent_dim: int) -> None:
    noise = patch_noise(seed, step, patch_size, latent_dim)
    assert noise.shape == (patch_size, latent_dim)
    assert np.isfinite(noise).all()
    np.testing.assert_array_equal(noise, patch_noise(seed, step, patch_size, latent_dim))


def test_no_two_seeds_or_steps_share_noise() -> None:
    rows = np.stack([patch_noise(seed, step, 4, 64).ravel() for seed in range(32) for step in range(32)])
    assert len(np.unique(rows, axis=0)) == len(rows)
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 0.35  # of 524,000 pairs of 256 normals each: five standard deviations


@given(of=st.lists(st.tuples(seeds, steps), min_size=1, max_size=70), latent_dim=st.integers(1, 64))
def test_many_at_once_are_each_what_they_are_alone(of: list[tuple[int, int]], latent_dim: int) -> None:
    together = patch_noises(of, 3, latent_dim)
    np.testing.assert_array_equal(together, [patch_noise(seed, step, 3, latent_dim) for seed, step in of])


def test_it_is_standard_normal() -> None:
    noise = np.concatenate([patch_noise(7, step, 4, 64).ravel() for step in range(400)])
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs((noise**4).mean() - 3) < 0.15


def test_first_values_stay_as_they_are() -> None:
    """Seeds that people have written down must keep their voice."""
    np.testing.assert_allclose(patch_noise(42, 3, 1, 4)[0], PINNED, rtol=1e-12)


PINNED = [-0.022014235959043664, 0.16023078745414313, -1.2015079880473156, -1.242354446464139]


def test_drawn_seeds_are_valid_and_differ() -> None:
    drawn = {draw_seed() for _ in range(50)}
    assert len(drawn) > 45
    assert all(0 <= seed < 2**32 for seed in drawn)
