"""Layers of the AudioVAE: causal convolutions that can run chunk by chunk, over `[rows, time, channels]`.

Time before channels makes every dense convolution a matrix product over contiguous rows. The snake activation is
`x + sin(ax)^2 / a`; with `u = ax` it is `(u + sin(u)^2) / a`, and the weights around it absorb `a` and `1/a` at load
(`vae_weights`), so a layer here computes `u + sin(u)^2` alone. The biases at the end of residual units are added before them:
what passes through the units of a stage is ahead by the biases still to come, which `shift` takes off again where a unit
looks at it. Source: `voxcpm.modules.audiovae`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evervox.layers.fusing import fused_snake

if TYPE_CHECKING:
    from types import ModuleType


class Carry:
    """What precedes the input at each layer, for one pass over the layers in their order.

    `before` `[rows, floats]` holds the layers' tails side by side; None means that zeros precede. After the pass `after` holds
    the next ones. They never share memory, so a kernel may read the one while it writes the other.
    """

    def __init__(self, before: Tensor | None = None) -> None:
        self._before = before
        self._after = None if before is None else torch.empty_like(before)
        self._at = 0

    @property
    def after(self) -> Tensor:
        assert self._after is not None, "nothing preceded, so nothing is kept"
        return self._after

    def take(self, floats: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """The next layer's tails `[rows, floats]`, to read and to write."""
        if self._before is None or self._after is None:
            return None, None
        start, self._at = self._at, self._at + floats
        return self._before[:, start : self._at], self._after[:, start : self._at]

    def extend(self, x: Tensor, context: int) -> Tensor:
        """Put the `context` steps before `x` `[rows, time, channels]` in front of it, and keep its own last ones."""
        if context == 0:
            return x
        before, after = self.take(context * x.shape[2])
        if before is None or after is None:
            return F.pad(x, (0, 0, context, 0))
        joined = torch.cat([before.view(-1, context, x.shape[2]), x], dim=1)
        after.view(-1, context, x.shape[2]).copy_(joined[:, x.shape[1] :])
        return joined


def snake_(u: Tensor) -> Tensor:
    """`u + sin(u)^2`, in place."""
    s = torch.sin(u)
    return u.addcmul_(s, s)


def weight(*shape: int) -> nn.Parameter:
    """An empty parameter: the checkpoint fills it."""
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


class Streamed(nn.Module):
    """A convolution that sees `context` steps before its input; its tail is `tail_floats` long per row."""

    def __init__(self, inputs: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.tail_floats = context * inputs


class Dense(Streamed):
    """A causal convolution over all channels, as a product with `[outputs, kernel * inputs]`, oldest step first."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, *, dilation: int = 1, stride: int = 1, context: int | None = None
    ) -> None:
        super().__init__(inputs, (kernel - 1) * dilation if context is None else context)
        self.kernel, self.dilation, self.stride = kernel, dilation, stride
        self.linear = nn.Linear(kernel * inputs, outputs)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        x = carry.extend(x, self.context)
        if self.kernel > 1:
            windows = x.unfold(1, (self.kernel - 1) * self.dilation + 1, self.stride)[..., :: self.dilation]
            x = windows.transpose(2, 3).flatten(2)
        out: Tensor = self.linear(x)
        return out

    def after_snake(self, x: Tensor, carry: Carry, alpha: Tensor, shift: Tensor | None = None) -> Tensor:
        """Of the snake of `x * alpha + shift`. For a kernel of twice the stride."""
        kernels = fused_snake(x)
        if kernels is not None:
            tails = carry.take(self.tail_floats)
            out: Tensor = self.linear(kernels.windows(x, alpha, shift, *tails, context=self.context, hop=self.stride))
        else:
            out = self(snake_(x * alpha if shift is None else torch.addcmul(shift, x, alpha)), carry)
        return out


class Depthwise(Streamed):
    """A causal convolution of each channel by itself. `weight` is `[channels, 1, 1, kernel]`."""

    def __init__(self, channels: int, kernel: int, dilation: int = 1) -> None:
        super().__init__(channels, (kernel - 1) * dilation)
        self.dilation = dilation
        self.weight = weight(channels, 1, 1, kernel)
        self.bias = weight(channels)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        kernels = fused_snake(x)
        if kernels is not None:
            return self.by(kernels, x, carry)
        # [rows, channels, 1, time] over the same memory is the channels-last image that libraries convolve fastest
        image = carry.extend(x, self.context).transpose(1, 2).unsqueeze(2)
        y = F.conv2d(image, self.weight, self.bias, dilation=(1, self.dilation), groups=x.shape[2])
        return y.squeeze(2).transpose(1, 2)

    def by(self, kernels: ModuleType, x: Tensor, carry: Carry, **snakes: Tensor) -> Tensor:
        """The same by a kernel, which takes the snakes on both sides along."""
        tails = carry.take(self.tail_floats)
        out: Tensor = kernels.depthwise(x, self.weight, self.bias, *tails, dilation=self.dilation, **snakes)
        return out


class ResidualUnit(nn.Module):
    """Snake, dilated convolution of 7, snake, pointwise convolution, plus the input, in whose place the sum is returned."""

    def __init__(self, channels: int, dilation: int, depthwise: bool) -> None:
        super().__init__()
        self.alpha = weight(channels)
        self.shift = weight(channels)
        self.conv: Streamed = Depthwise(channels, 7, dilation) if depthwise else Dense(channels, channels, 7, dilation=dilation)
        self.point = weight(channels, channels)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        x.view(-1, x.shape[2]).addmm_(self._branch(x, carry).flatten(0, 1), self.point.t())
        return x

    def _branch(self, x: Tensor, carry: Carry) -> Tensor:
        kernels = fused_snake(x)
        if kernels is not None and isinstance(self.conv, Depthwise):
            return self.conv.by(kernels, x, carry, alpha=self.alpha, shift=self.shift)
        return snake_(self.conv(snake_(torch.addcmul(self.shift, x, self.alpha)), carry))


class ResidualUnits(nn.ModuleList):
    """The three units of a stage, with dilations 1, 3 and 9."""

    def __init__(self, channels: int, depthwise: bool) -> None:
        super().__init__(ResidualUnit(channels, dilation, depthwise) for dilation in (1, 3, 9))

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        for unit in self:
            x = unit(x, carry)
        return x


class Down(nn.Module):
    """An encoder stage: residual units, snake, then a convolution of twice the stride."""

    def __init__(self, channels: int, stride: int, context: int, depthwise: bool) -> None:
        super().__init__()
        self.units = ResidualUnits(channels, depthwise)
        self.alpha = weight(channels)
        self.conv = Dense(channels, 2 * channels, 2 * stride, stride=stride, context=context)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        return self.conv.after_snake(self.units(x, carry), carry, self.alpha)


class Up(nn.Module):
    """A decoder stage: conditioning on the output rate, snake, transposed convolution, residual units.

    A transposed convolution of twice the stride is a convolution of two steps into `stride` steps side by side.
    `alpha` and `shift` hold the conditioning too.
    """

    def __init__(self, channels: int, outputs: int, stride: int, depthwise: bool) -> None:
        super().__init__()
        self.stride = stride
        self.alpha = weight(channels)
        self.shift = weight(channels)
        self.conv = Dense(channels, stride * outputs, 2)
        self.units = ResidualUnits(outputs, depthwise)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        y = self.conv.after_snake(x, carry, self.alpha, self.shift)
        out: Tensor = self.units(y.view(x.shape[0], x.shape[1] * self.stride, -1), carry)
        return out
