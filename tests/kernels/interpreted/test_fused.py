"""The fused kernels against the plain forms that they stand in for."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from evervox.kernels import fused
from evervox.layers.norm import RMSNorm
from evervox.layers.rope import rope_table, rotate
from evervox.models.voxcpm.config import RopeConfig
from evervox.models.voxcpm.minicpm import gated

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


@pytest.fixture(params=TOLERANCE)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    return request.param


def close(ours: torch.Tensor, plain: torch.Tensor) -> None:
    assert ours.dtype == plain.dtype
    torch.testing.assert_close(ours, plain, rtol=TOLERANCE[plain.dtype], atol=TOLERANCE[plain.dtype])


@pytest.mark.parametrize("shape", [(1, 32), (5, 48), (2, 3, 1024)])
def test_add_and_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    norm = RMSNorm(shape[-1], 1e-5).to(dtype)
    norm.weight.data.normal_()
    x, y = torch.randn(2, *shape).to(dtype).unbind(0)
    for ours, plain in zip(fused.add_norm(x, y, norm.weight, scale=0.3, eps=norm.eps), norm.after_adding(x, y, 0.3), strict=True):
        close(ours, plain)


@pytest.mark.parametrize("shape", [(1, 32), (3, 2, 96), (2, 2 * 1536)])
def test_silu_times(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    both = 3 * torch.randn(shape).to(dtype)
    close(fused.silu_mul(both), gated(both))


@pytest.mark.parametrize(("leading", "heads"), [((7,), 4), ((3, 5), 3), ((2, 3, 5), 1)])
def test_rotation_of_a_part_of_a_projection(dtype: torch.dtype, leading: tuple[int, ...], heads: int) -> None:
    config = RopeConfig(10_000.0, (1.0,) * 8, (1.5,) * 8, 64, 32)
    cos, sin = rope_table(config, 16, 40)[:, 3 : 3 + leading[-1]].unbind(0)
    x = torch.randn(*leading, heads + 2, 16).to(dtype)[..., :heads, :]
    assert fused.can_rotate(x, cos)
    close(fused.rotate(x, cos, sin), rotate(x, (cos, sin)))


def test_what_cannot_be_rotated_is_known() -> None:
    x, cos = torch.randn(4, 6, 3, 16), torch.randn(6, 16)
    assert fused.can_rotate(x, cos)
    assert not fused.can_rotate(x.transpose(0, 1), cos)
    assert not fused.can_rotate(x.transpose(1, 2), cos)
    assert not fused.can_rotate(x, torch.randn(4, 6, 16))
    assert not fused.can_rotate(torch.randn(4, 3, 12), torch.randn(4, 12))
