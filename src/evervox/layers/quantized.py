"""Linear layers in 8-bit integers on a CPU: a quarter of float32's bytes, and products that the CPU has instructions for.

Weights are scaled per output, inputs per row as they come, so what a row gets does not depend on its batch. Source: FBGEMM
through `torch.ops.quantized`.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from evervox.layers.packed import replace_linears

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = "fbgemm"
SMALLEST = 2**19
"""Weights from which on integers pay: below, scaling the inputs costs more than the product saves."""
TINY = 1e-30
"""Stands in for the largest value of a row or a weight that is all zeros."""


class Int8Linear(nn.Module):
    """`x @ weight.T + bias`, in the dtype of `x`. The weight cannot be read back."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp(min=TINY) / 127
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        with _engine(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to drop quantised tensors; `can_quantize` finds out when it has
            quantized = torch.quantize_per_channel(weight, scale.double(), zeros, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(quantized, None)
        self._bias = None if linear.bias is None else linear.bias.detach().float()
        self._steps = 127 if _has_exact_products() else 63

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        largest = wide.abs().amax(dim=-1, keepdim=True).clamp_(min=TINY)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        out: Tensor = product(wide / largest, 1 / self._steps, self._steps + 1, self._packed)
        out = out.mul_(largest) if self._bias is None else torch.addcmul(self._bias, out, largest)
        return out.to(x.dtype)


def quantize(module: nn.Module) -> None:
    """Replace the linear layers under `module` that are large enough for it to pay."""
    replace_linears(module, Int8Linear, smallest=SMALLEST)


def can_quantize() -> bool:
    """Whether this CPU and this build of torch have the kernels: asked by using them once."""
    try:
        Int8Linear(nn.Linear(16, 16))(torch.zeros(1, 16))
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def _has_exact_products() -> bool:
    """Without VNNI a sum of two products saturates at 16 bits: seven bits per input stay below that."""
    return bool(getattr(torch.cpu, "_is_vnni_supported", bool)())


@contextmanager
def _engine() -> Iterator[None]:
    """Which library packs a weight is a setting of the whole process: leave it as it was."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
