"""RMSNorm: inside in float32, the result in the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from evervox.layers.fusing import fused


class RMSNorm(nn.Module):
    """`x * rsqrt(mean(x^2) + eps) * weight` over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype is not torch.float64:
            return rms_norm(x, self.weight.shape, self.weight, self.eps)
        # the reference takes the variance in float32 even of float64
        scale = torch.rsqrt(x.to(torch.float32).pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return (x * scale).to(x.dtype) * self.weight

    def after_adding(self, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """`x + y * scale`, and its norm."""
        kernels = fused(x)
        if kernels is not None:
            total, normed = kernels.add_norm(x, y, self.weight, scale=scale, eps=self.eps)
            return total, normed
        total = torch.add(x, y, alpha=scale)
        return total, self(total)
