"""Muon for the matrices inside the transformers, AdamW for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

MUON_RATE, ADAM_RATE = 0.02, 2e-3
WARM_UP, COOL_DOWN = 100, 0.3


def orthogonalise(batch: Tensor, steps: int = 4) -> Tensor:
    """Newton-Schulz: the nearest matrices with all singular values near one (Jordan et al., Muon, 2024). [n, rows, columns]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = batch.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2).contiguous() if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True).to(x.dtype) + 1e-7)
    for _ in range(steps):
        square = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalised; matrices of one size go through Newton-Schulz together."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = MUON_RATE, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            sizes: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                sizes.setdefault(parameter.shape, []).append(parameter)
            for size, members in sizes.items():
                self._step_size(size, members, group["lr"], group["momentum"])

    def _step_size(self, size: torch.Size, members: list[nn.Parameter], lr: float, momentum: float) -> None:
        directions = []
        for parameter in members:
            state = self.state[parameter]
            if "buffer" not in state:
                state["buffer"] = torch.zeros_like(parameter)
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            state["buffer"].lerp_(gradient, 1 - momentum)
            directions.append(gradient.lerp(state["buffer"], momentum))
        steps = orthogonalise(torch.stack(directions))
        for parameter, step in zip(members, steps, strict=True):
            parameter.add_(step, alpha=-lr * max(1.0, size[0] / size[1]) ** 0.5)


def optimisers(voice: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices of transformer layers, AdamW for embeddings, projections, norms and biases."""
    inside = [p for name, p in voice.named_parameters() if p.ndim == 2 and ".layers." in name]
    chosen = {id(p) for p in inside}
    rest = [p for p in voice.parameters() if id(p) not in chosen]
    return [Muon(inside), torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.01)]


def rate(step: int, steps: int) -> float:
    """Warm-up, a plateau, and a straight line to a fiftieth over the last COOL_DOWN of the run."""
    cooling = max(1, round(steps * COOL_DOWN))
    return min(1.0, (step + 1) / WARM_UP, max(0.02, (steps - step) / cooling))


def set_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Scales an optimiser's learning rate from its first value."""
    for group in optimiser.param_groups:
        group.setdefault("initial", group["lr"])
        group["lr"] = group["initial"] * factor
