"""Layers in the form that is fastest on a CPU, made once from the plain ones.

A plain linear layer reorders its weights at every call; for the few rows of a decode step that costs more than the product.
Here they are reordered once, and the plain copy is dropped. Source: oneDNN through `torch.ops.mkldnn`, as torch's own
compiler uses it. And torch has no RMSNorm of one piece for a CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evervox.layers.norm import RMSNorm

if TYPE_CHECKING:
    from collections.abc import Callable

SMALLEST = 2**15
"""Weights from which on packing pays in float32: below, the plain call's lower overhead wins (20 microseconds each)."""

ROWS_HINT = 16
"""Rows that the layout is chosen for. It matters little: 1 to 64 measure alike."""


class PackedLinear(nn.Module):
    """`x @ weight.T + bias` for float32 or bfloat16 on a CPU. The weight cannot be read back."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS_HINT)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


class PackedNorm(RMSNorm):
    """`x / hypot(|x|, sqrt(size * eps)) * (weight * sqrt(size))`: four operations, where torch's own takes twice their time."""

    def __init__(self, norm: RMSNorm) -> None:
        size = norm.weight.numel()
        super().__init__(size, norm.eps)
        self.weight = norm.weight
        self._gain = norm.weight.detach().float() * math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * norm.eps))

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).hypot_(self._floor)
        out: Tensor = (x / length).mul_(self._gain)
        return out.to(x.dtype)


def pack(module: nn.Module) -> None:
    """Replace norms and linear layers under `module` by packed ones, where this CPU and dtype have such kernels and it pays."""
    like = next(module.parameters())
    if can_pack(like):
        replace_linears(module, PackedLinear, smallest=SMALLEST if like.dtype is torch.float32 else 0)
        replace_norms(module)


def can_pack(like: Tensor) -> bool:
    """Whether packed layers work for the device and dtype of `like`: asked by doing it once."""
    if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        PackedLinear(nn.Linear(16, 16, dtype=like.dtype))(like.new_zeros(1, 16))
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def replace_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        if type(child) is RMSNorm:
            setattr(module, name, PackedNorm(child))
        else:
            replace_norms(child)


def replace_linears(module: nn.Module, make: Callable[[nn.Linear], nn.Module], *, smallest: int) -> None:
    """Swap each linear layer of at least `smallest` weights for `make(layer)`, one at a time: both forms of only one exist."""
    for name, child in module.named_children():
        if type(child) is not nn.Linear:
            replace_linears(child, make, smallest=smallest)
        elif child.weight.numel() >= smallest:
            setattr(module, name, make(child))
