"""The AudioVAE equals the reference's, whole and as streams."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle import quiet, reference
from torch import Tensor

from evervox.errors import CheckpointError
from evervox.models.voxcpm.config import VaeConfig, _vae
from evervox.models.voxcpm.vae import ENCODE_FRAMES, AudioVae
from evervox.models.voxcpm.vae_weights import raw_vae_shapes, vae_state

BASE = {"encoder_dim": 4, "encoder_rates": [2, 4], "latent_dim": 6, "decoder_dim": 24, "decoder_rates": [4, 2]}
CASES = {
    "first": (1, {}),
    "first, odd rates": (1, {"encoder_rates": [2, 5, 3], "decoder_rates": [5, 3, 2]}),
    "first, not depthwise": (1, {"depthwise": False}),
    "first, not depthwise, odd": (1, {"depthwise": False, "encoder_rates": [3], "decoder_rates": [3]}),
    "second": (2, {}),
    "second, odd rates": (2, {"encoder_rates": [5, 2], "decoder_rates": [5, 3, 1, 2]}),
    "second, not depthwise": (2, {"depthwise": False, "encoder_rates": [3, 2]}),
    "second, no boundaries": (2, {"sr_bin_boundaries": None}),
    "second, lowest bucket": (2, {"out_sample_rate": 20000}),
    "second, one boundary": (2, {"out_sample_rate": 24000, "sr_bin_boundaries": [22000], "cond_type": "scale_bias_init"}),
    "second, add": (2, {"cond_type": "add"}),
}


def build(case: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[torch.nn.Module, AudioVae]:
    """The reference's VAE with random parameters, and ours from its tensors."""
    version, changes = CASES[case]
    raw = BASE | changes
    module = reference().vae if version == 1 else reference().vae2
    with quiet():
        theirs = module.AudioVAE(module.AudioVAEConfig(**raw)).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=dtype)
            around_one = name.endswith(("weight_g", "alpha", "scale_embed.weight"))
            # gains of a half keep the random network's activations near 1: sines of large numbers would amplify rounding
            scale = 0.5 if name.endswith("weight_g") else 1.0
            parameter.copy_(scale * (1 + 0.3 * noise.clamp(-2, 2)) if around_one else 0.3 * noise)
    return theirs, load(theirs.state_dict(), _vae(raw, second=version == 2), dtype)


def load(raw: dict[str, Tensor], config: VaeConfig, dtype: torch.dtype) -> AudioVae:
    read = vae_state(raw, config, dtype)
    assert (read.missing, read.leftover, read.misshaped) == ([], [], [])
    vae = AudioVae(config)
    vae.load_state_dict(read.state, assign=True)
    return vae


def latents_of(vae: AudioVae, rows: int, frames: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, frames, vae.config.latent_dim, generator=generator, dtype=vae.dtype)


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, in units of the expected output's largest value."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-7), (torch.float32, 1e-4)])
def test_decode_equals_the_reference(case: str, dtype: torch.dtype, limit: float) -> None:
    theirs, ours = build(case, dtype)
    latents = latents_of(ours, rows=2, frames=9)
    with torch.no_grad():
        expected = theirs.decode(latents.transpose(1, 2)).squeeze(1)
    assert expected.abs().max() > 0.01
    assert error(ours.decode(latents), expected) <= limit


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-7), (torch.float32, 1e-4)])
def test_encode_equals_the_reference(case: str, dtype: torch.dtype, limit: float) -> None:
    theirs, ours = build(case, dtype)
    hop = ours.config.encoder_hop
    audio = torch.randn(2, (ENCODE_FRAMES + 7) * hop - hop // 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    with torch.no_grad():
        expected = theirs.encode(audio, theirs.sample_rate).transpose(1, 2)
    assert error(ours.encode(audio), expected) <= limit


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("frames_per_patch", [1, 2, 4])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_streamed_equals_whole(case: str, frames_per_patch: int, chunk: int) -> None:
    _, vae = build(case, torch.float32)
    latents = latents_of(vae, rows=2, frames=14 * frames_per_patch)
    tails = vae.new_tails(2)
    parts = [vae.decode(part, tails) for part in torch.split(latents, chunk * frames_per_patch, dim=1)]
    assert (torch.cat(parts, dim=1) - vae.decode(latents)).abs().max() <= 1e-5


@pytest.mark.parametrize("case", [case for case, (version, _) in CASES.items() if version == 2])
def test_streamed_equals_the_reference_streaming(case: str) -> None:
    theirs, vae = build(case)
    latents = latents_of(vae, rows=1, frames=12)
    tails = vae.new_tails(1)
    with torch.no_grad(), theirs.streaming_decode() as stream:
        for part in torch.split(latents, 2, dim=1):
            expected = stream.decode_chunk(part.transpose(1, 2)).squeeze(1)
            assert (vae.decode(part, tails) - expected).abs().max() <= 1e-6


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(st.sets(st.integers(0, 3), min_size=1), st.integers(1, 3), st.integers(-1, 3)), max_size=12))
def test_rows_are_streams_of_their_own(steps: list[tuple[set[int], int, int]]) -> None:
    """Any subset of rows runs at a time, and a row may begin anew at any time: each still decodes as if alone and whole."""
    _, vae = build("second, odd rates")
    tails = vae.new_tails(4)
    fed: list[list[Tensor]] = [[] for _ in range(4)]
    heard: list[list[Tensor]] = [[] for _ in range(4)]
    for i, (chosen, frames, restart) in enumerate(steps):
        rows = sorted(chosen, reverse=i % 2 == 1)
        if restart >= 0:
            tails.reset(restart)
            fed[restart], heard[restart] = [], []
        latents = latents_of(vae, len(rows), frames, seed=i)
        audio = vae.decode(latents, tails, torch.tensor(rows))
        for j, row in enumerate(rows):
            fed[row].append(latents[j])
            heard[row].append(audio[j])
    for row in range(4):
        if fed[row]:
            whole = vae.decode(torch.cat(fed[row])[None])[0]
            assert (torch.cat(heard[row]) - whole).abs().max() <= 1e-10


@pytest.mark.parametrize("case", CASES)
def test_reach_is_exact(case: str) -> None:
    """A frame of NaN reaches every tail that depends on it: the oldest of the last `decoder_reach` does, the one before not."""
    _, vae = build(case)
    latents = latents_of(vae, rows=1, frames=vae.decoder_reach + 5)

    def settles(age: int) -> bool:
        tails = vae.new_tails(1)
        vae.decode(latents.index_fill(1, torch.tensor(latents.shape[1] - age), torch.nan), tails)
        return bool(tails.state.isfinite().all())

    assert settles(vae.decoder_reach + 1)
    assert not settles(vae.decoder_reach)


@pytest.mark.parametrize("case", CASES)
def test_a_tail_is_rebuilt_from_the_last_frames(case: str) -> None:
    _, vae = build(case)
    latents = latents_of(vae, rows=2, frames=vae.decoder_reach + 9)
    lived, rebuilt = vae.new_tails(2), vae.new_tails(2)
    vae.decode(latents, lived)
    vae.decode(latents[:, -vae.decoder_reach :], rebuilt)
    assert (rebuilt.state - lived.state).abs().max() <= 1e-12


def test_reach_of_the_real_size() -> None:
    config = _vae({}, second=False)
    with torch.device("meta"):
        assert AudioVae(config).decoder_reach == 19


def test_a_failed_decode_leaves_the_tails() -> None:
    _, vae = build("first")
    tails = vae.new_tails(2)
    vae.decode(latents_of(vae, 2, 3), tails)
    before = tails.state.clone()
    vae.decoder.last.linear = torch.nn.Linear(1, 1)
    for rows in (None, torch.tensor([1, 0])):
        with pytest.raises(RuntimeError):
            vae.decode(latents_of(vae, 2, 3), tails, rows)
    assert torch.equal(tails.state, before)


def test_tails_say_their_size() -> None:
    _, vae = build("first", torch.float32)
    tails = vae.new_tails(5)
    assert (tails.num_rows, tails.num_bytes) == (5, 5 * 4 * tails.state.shape[1])


def test_a_flat_snake_is_the_identity() -> None:
    """A slope of exactly zero cannot be divided by; the reference passes the input through."""
    theirs, _ = build("second")
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("alpha"):
                parameter[:, ::2] = 0
    ours = load(theirs.state_dict(), _vae(BASE, second=True), torch.float64)
    latents = latents_of(ours, 1, 5)
    with torch.no_grad():
        assert error(ours.decode(latents), theirs.decode(latents.transpose(1, 2)).squeeze(1)) <= 1e-4


def test_other_spellings_of_weight_norm() -> None:
    theirs, ours = build("first")
    raw = theirs.state_dict()
    newer = {
        name.replace("weight_g", "parametrizations.weight.original0").replace("weight_v", "parametrizations.weight.original1"): t
        for name, t in raw.items()
    }
    with quiet():
        for module in list(theirs.modules()):
            if hasattr(module, "weight_g"):
                torch.nn.utils.remove_weight_norm(module)
    latents = latents_of(ours, 1, 5)
    for spelled in (newer, theirs.state_dict()):
        vae = load(spelled, ours.config, torch.float64)
        assert (vae.decode(latents) - ours.decode(latents)).abs().max() <= 1e-12


def test_what_does_not_fit_is_named() -> None:
    theirs, ours = build("second")
    raw = theirs.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in raw.items()} == raw_vae_shapes(ours.config)
    del raw["decoder.model.1.bias"]
    raw["encoder.fc_mu.weight_v"] = torch.zeros(1, 2, 3)
    raw["decoder.surprise"] = torch.zeros(1)
    read = vae_state(raw, ours.config)
    assert read.missing == ["decoder.model.1.bias"]
    assert read.leftover == ["decoder.surprise"]
    assert read.misshaped == ["encoder.fc_mu.weight_v is [1, 2, 3], expected [6, 16, 3]"]


def test_an_encoder_rate_of_one_is_refused() -> None:
    with pytest.raises(CheckpointError, match="encoder_rates must be at least 2"):
        AudioVae(_vae(BASE | {"encoder_rates": [1, 2]}, second=False))
