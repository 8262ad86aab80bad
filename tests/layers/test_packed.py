"""Packed linear layers compute what the plain ones do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from evervox.layers.norm import RMSNorm
from evervox.layers.packed import PackedLinear, PackedNorm, can_pack, pack

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Nested(nn.Module):
    """Linear layers at two depths, with and without bias, and a layer that must stay as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 24)
        self.layers = nn.Sequential(nn.Linear(24, 40, bias=False), nn.GELU(), nn.Linear(40, 2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(self.embed(tokens))
        return out


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 3, 4), (70,)])
def test_packed_equals_plain(dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evervox.layers.packed.SMALLEST", 0)
    plain = Nested().to(dtype).requires_grad_(False)
    assert can_pack(plain.embed.weight)
    packed = copy.deepcopy(plain)
    pack(packed)
    assert sum(isinstance(m, PackedLinear) for m in packed.modules()) == 2
    tokens = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(0))
    expected = plain(tokens)
    assert packed(tokens).shape == expected.shape
    torch.testing.assert_close(packed(tokens), expected, rtol=LIMITS[dtype], atol=LIMITS[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_stay_plain(dtype: torch.dtype) -> None:
    module = Nested().to(dtype)
    pack(module)
    assert not any(isinstance(m, PackedLinear) for m in module.modules())


def test_only_large_layers_of_float32_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evervox.layers.packed.SMALLEST", 24 * 40)
    module = Nested()
    pack(module)
    assert [type(m) for m in module.layers] == [PackedLinear, nn.GELU, nn.Linear]


def test_the_plain_weights_are_gone() -> None:
    module = Nested().bfloat16()
    pack(module)
    assert set(module.state_dict()) == {"embed.weight"}


@pytest.mark.parametrize("dtype", LIMITS)
def test_packed_norm_equals_plain(dtype: torch.dtype) -> None:
    """Rows of very different size, zeros among them, and the sum before the norm."""
    generator = torch.Generator().manual_seed(0)
    plain = RMSNorm(24, 1e-6).to(dtype).requires_grad_(False)
    plain.weight.copy_(torch.rand(24, generator=generator))
    packed = nn.Sequential(copy.deepcopy(plain))
    pack(packed)
    norm = packed[0]
    assert isinstance(norm, PackedNorm)
    x, y = (torch.randn(4, 3, 24, generator=generator).to(dtype) for _ in range(2))
    x *= torch.tensor([0.0, 1e-4, 1.0, 1e3], dtype=dtype)[:, None, None]
    torch.testing.assert_close(norm(x), plain(x), rtol=LIMITS[dtype], atol=LIMITS[dtype])
    for ours, theirs in zip(norm.after_adding(x, y, 0.5), plain.after_adding(x, y, 0.5), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=LIMITS[dtype], atol=LIMITS[dtype])
