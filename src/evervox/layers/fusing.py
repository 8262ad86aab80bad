"""Whether the fused kernels serve a tensor: on a GPU, with triton, in a dtype that they know."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from evervox.kernels import can_launch

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor


def fused(x: Tensor) -> ModuleType | None:
    """`kernels.fused`, or None where the plain form serves."""
    return _kernels(x.dtype) if x.is_cuda else None


def fused_snake(x: Tensor) -> ModuleType | None:
    """`kernels.snake`, or None where the plain form serves."""
    return _snake_kernels() if x.is_cuda and x.dtype is torch.float32 else None


@cache
def _kernels(dtype: torch.dtype) -> ModuleType | None:
    if not can_launch():
        return None
    from evervox.kernels import fused as kernels

    return kernels if dtype in kernels.DTYPES else None


@cache
def _snake_kernels() -> ModuleType | None:
    if not can_launch():
        return None
    from evervox.kernels import snake

    return snake
