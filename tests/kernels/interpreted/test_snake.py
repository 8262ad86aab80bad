"""The VAE's kernels against the plain layers that they stand in for, on a CPU under the interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from evervox.kernels import snake as kernels
from evervox.models.voxcpm import vae, vae_layers
from evervox.models.voxcpm.config import VaeConfig
from evervox.models.voxcpm.vae import AudioVae
from evervox.models.voxcpm.vae_layers import Carry, Dense, Depthwise, ResidualUnit, snake_

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

LIMIT = 1e-5
"""Largest difference, in units of the expected output's largest value."""

NAN = float("nan")
shapes = st.tuples(st.integers(1, 2), st.integers(1, 70), st.sampled_from([1, 3, 8, 32, 33, 48]))


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated holds NaN: no part of it may be taken for written."""
    like, new = torch.empty_like, torch.Tensor.new_empty
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: like(*args, **kwargs).fill_(NAN))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: new(*args, **kwargs).fill_(NAN))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Within it the layers use the kernels. In fewer and shorter programs: the interpreter's time goes by operations."""
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "_TILE", 2048)
        patched.setattr(kernels, "_STEPS", 6)
        for module in (vae, vae_layers):
            patched.setattr(module, "fused_snake", lambda x: kernels)
        yield patched


def filled(module: nn.Module, seed: int) -> nn.Module:
    """With random parameters; slopes around 1, and gains below it: sines of large numbers would amplify rounding."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 1 + 0.3 * noise.clamp(-2, 2) if "alpha" in name else 0.5 * noise * parameter[0].numel() ** -0.5
    return module.requires_grad_(False)


def close(ours: Tensor, plain: Tensor) -> None:
    assert ours.shape == plain.shape
    if plain.numel():
        assert (ours - plain).abs().max() <= LIMIT * plain.abs().max()


def test_the_square_of_a_sine() -> None:
    """Through the kernel that does nothing else: every window of one step over one channel."""
    u = torch.cat([torch.linspace(-50, 50, 20_001), torch.logspace(-12, 5, 2000), -torch.logspace(-12, 5, 2000)])
    wide = u.double()
    exact = wide + torch.sin(wide) ** 2
    ours = kernels.windows(u.view(1, -1, 1), torch.ones(1), None, None, None, context=1, hop=1)[0, :, 1]
    assert ((ours - exact).abs() / exact.abs().clamp(min=1)).max() < 3e-7


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_no_argument_is_too_large_for_it() -> None:
    u = torch.tensor([1e7, -1e7, 1e20, -1e30, 3e38])
    ours = kernels.windows(u.view(1, -1, 1), torch.ones(1), None, None, None, context=1, hop=1)[0, :, 1]
    torch.testing.assert_close(ours, u, rtol=1e-6, atol=0)
    lost = kernels.windows(torch.tensor([[[NAN]]]), torch.ones(1), None, None, None, context=1, hop=1)
    assert lost[0, 0].isnan().tolist() == [False, True]


@settings(max_examples=25, deadline=None)
@example(shape=(1, 66, 32), dilation=1, seed=0, streamed=True)  # the next chunk's past lies with two programs
@given(shape=shapes, dilation=st.sampled_from([1, 2, 3, 9]), seed=st.integers(0, 99), streamed=st.booleans())
def test_a_depthwise_convolution_between_snakes(shape: tuple[int, int, int], dilation: int, seed: int, streamed: bool) -> None:
    """Whatever the chunk's length: shorter than the past, as long, and longer than a program's stretch."""
    rows, time, channels = shape
    unit = filled(ResidualUnit(channels, dilation, depthwise=True), seed)
    conv = unit.conv
    assert isinstance(conv, Depthwise)
    x = torch.randn(rows, time, channels)
    state = torch.randn(rows, conv.tail_floats) if streamed else None
    ours, plain = Carry(state), Carry(state)
    close(conv.by(kernels, x, ours, alpha=unit.alpha, shift=unit.shift), unit._branch(x, plain))
    if streamed:
        close(ours.after, plain.after)
    bare, expected = Carry(state), Carry(state)
    close(conv.by(kernels, x, bare), conv(x, expected))
    if streamed:
        assert torch.equal(bare.after, expected.after)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, stride=st.integers(1, 6), odd=st.booleans(), shifted=st.booleans(), streamed=st.booleans())
def test_windows_of_a_snake(shape: tuple[int, int, int], stride: int, odd: bool, shifted: bool, streamed: bool) -> None:
    """A convolution of 2 steps in the decoder; of twice the stride in the encoder, some with one more step of past."""
    rows, time, channels = shape
    conv = filled(Dense(channels, 5, 2 * stride, stride=stride, context=stride + odd), stride)
    assert isinstance(conv, Dense)
    x, alpha, shift = torch.randn(rows, time * stride, channels), torch.rand(channels) + 0.5, torch.randn(channels)
    state = torch.randn(rows, conv.tail_floats) if streamed else None
    ours, plain = Carry(state), Carry(state)
    made = kernels.windows(x, alpha, shift if shifted else None, *ours.take(conv.tail_floats), context=stride + odd, hop=stride)
    close(conv.linear(made), conv.after_snake(x, plain, alpha, shift if shifted else None))
    if streamed:
        close(ours.after, plain.after)


@settings(max_examples=20, deadline=None)
@given(shape=shapes, streamed=st.booleans(), seed=st.integers(0, 99))
def test_down_to_one_channel(shape: tuple[int, int, int], streamed: bool, seed: int) -> None:
    rows, time, channels = shape
    conv, alpha, x = filled(Dense(channels, 1, 7), seed), torch.rand(channels) + 0.5, torch.randn(rows, time, channels)
    assert isinstance(conv, Dense)
    state = torch.randn(rows, conv.tail_floats) if streamed else None
    ours, plain = Carry(state), Carry(state)
    made = kernels.mono(x, alpha, conv.linear.weight, conv.linear.bias, *ours.take(conv.tail_floats))
    expected = conv(snake_(x * alpha), plain).squeeze(2)
    assert (made - expected).abs().max() <= LIMIT * max(1.0, float(expected.abs().max()))
    if streamed:
        close(ours.after, plain.after)


CONFIG = VaeConfig(
    encoder_dim=4,
    encoder_rates=(2, 3),
    latent_dim=6,
    decoder_dim=32,
    decoder_rates=(3, 2),
    depthwise=True,
    encoder_sample_rate=16000,
    sample_rate=48000,
    rate_boundaries=None,
    rate_conditioning="add",
    trim_odd_strides=False,
)


def random_vae() -> AudioVae:
    made = filled(AudioVae(CONFIG), 7)
    assert isinstance(made, AudioVae)
    return made


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_stream_by_kernels_equals_the_whole_by_plain_layers(chunk: int, fused: pytest.MonkeyPatch) -> None:
    """Chunks shorter than the past of most layers, rows out of order, and a padding row that is full of NaN."""
    model = random_vae()
    latents = torch.randn(2, 4, CONFIG.latent_dim)
    tails, rows = model.new_tails(4), torch.tensor([2, 0, 3])
    tails.state[3] = NAN
    heard = []
    for part in torch.split(latents, chunk, dim=1):
        padded = torch.cat([part, torch.full_like(part[:1], NAN)])
        heard.append(model.decode(padded, tails, rows)[:2])
    streamed, whole = torch.cat(heard, 1), model.decode(latents)
    fused.undo()
    expected, kept = model.decode(latents), model.new_tails(2)
    model.decode(latents, kept)
    assert expected.abs().max() > 0.01
    close(streamed, expected)
    close(whole, expected)
    close(tails.state[[2, 0]], kept.state)
    assert not tails.state[1].any()


def test_a_clip_is_encoded_the_same(fused: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_vae()
    monkeypatch.setattr(vae, "ENCODE_FRAMES", 3)
    audio = torch.randn(2, 27)
    ours = model.encode(audio)
    fused.undo()
    close(ours, model.encode(audio))
