"""Linear layers in 8-bit integers stay near the plain ones, and rows stay independent of each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from evervox.layers.quantized import Int8Linear, can_quantize, quantize

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this CPU or build of torch has no 8-bit kernels")


def layers(bias: bool = True) -> tuple[nn.Linear, Int8Linear]:
    plain = nn.Linear(96, 40, bias=bias).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    plain.weight.copy_(torch.randn(plain.weight.shape, generator=generator))
    return plain, Int8Linear(plain)


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 96, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 3, 4), (70,)])
def test_error_is_small(shape: tuple[int, ...], bias: bool) -> None:
    plain, quantized = layers(bias)
    expected, got = plain(inputs(*shape)), quantized(inputs(*shape))
    assert got.shape == expected.shape
    if len(inputs(*shape)):
        assert (got - expected).norm() / expected.norm() < 0.02


def test_a_row_does_not_depend_on_its_batch() -> None:
    """One loud row must not take the steps away from the quiet ones."""
    _, quantized = layers()
    x = inputs(8)
    x[3] *= 1000
    together = quantized(x)
    for row in range(8):
        assert torch.equal(quantized(x[row : row + 1])[0], together[row])


def test_extremes_do_not_saturate() -> None:
    """All inputs and weights at their largest, and alternating: where 16-bit sums would overflow."""
    plain = nn.Linear(96, 4, bias=False).requires_grad_(False)
    plain.weight[0], plain.weight[1], plain.weight[2], plain.weight[3] = 1, -1, 0.5, 0
    quantized = Int8Linear(plain)
    for x in (torch.ones(1, 96), -torch.ones(1, 96), torch.zeros(1, 96)):
        assert (quantized(x) - plain(x)).abs().max() < 0.02 * 96


def test_bfloat16_in_and_out() -> None:
    plain, quantized = layers()
    x = inputs(5).bfloat16()
    assert quantized(x).dtype is torch.bfloat16
    assert (quantized(x).float() - plain(x.float())).norm() / plain(x.float()).norm() < 0.02


def test_the_process_keeps_its_engine() -> None:
    before = torch.backends.quantized.engine
    layers()
    assert torch.backends.quantized.engine == before


def test_quantize_replaces_large_layers() -> None:
    module = nn.Sequential(nn.Linear(512, 1024), nn.Sequential(nn.GELU(), nn.Linear(1024, 2)))
    quantize(module)
    assert isinstance(module[0], Int8Linear)
    assert {name for name, _ in module.named_parameters()} == {"1.1.weight", "1.1.bias"}
