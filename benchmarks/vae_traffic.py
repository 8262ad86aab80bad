"""Bytes that the decoder moves through a GPU's memory for one patch of each row, counted from shapes, and the launches it takes.

    PYTHONPATH=src:. python benchmarks/vae_traffic.py --size 2 --rows 1 64

Nothing is computed: the model is on the meta device. An operation reads its inputs and writes its outputs once, views are free.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest.mock import patch

import torch
from tools.gpu_check.fixtures import config_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evervox.models.voxcpm import vae, vae_layers
from evervox.models.voxcpm.vae import AudioVae

PER_SECOND = 4.8e12
"""Bytes a second of an H200's memory, by its data sheet."""


class Traffic(TorchDispatchMode):
    """Adds up bytes and operations."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = self.launches = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.__name__.split(".")[0]
        if name in ("copy_", "index_copy_"):
            self.add(args[-1], args[-1])
        elif not function.is_view and name not in ("empty_like", "new_empty", "_unsafe_view"):
            read = {id(leaf): leaf for leaf in tree_leaves((args, kwargs))}
            self.add(*read.values(), *tree_leaves(out))
        return out

    def add(self, *tensors: Any) -> None:
        """One launch over these; what it changes in place is read and written, and given twice."""
        self.launches += 1
        found = (tensor for tensor in tensors if isinstance(tensor, Tensor))
        self.num_bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in found)


class Kernels:
    """In the place of `kernels.snake`."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def depthwise(self, x: Tensor, weight: Tensor, bias: Tensor, *tails: Tensor, dilation: int, **snakes: Tensor) -> Tensor:
        return self._made(torch.empty_like(x), x, weight, bias, *tails, *snakes.values())

    def mono(self, x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor, *tails: Tensor) -> Tensor:
        return self._made(x.new_empty(x.shape[:2]), x, alpha, weight, bias, *tails)

    def windows(self, x: Tensor, alpha: Tensor, shift: Tensor | None, *tails: Tensor, context: int, hop: int) -> Tensor:
        count = (context + x.shape[1]) // hop - 1
        return self._made(x.new_empty(x.shape[0], count, 2 * hop * x.shape[2]), x, alpha, shift, *tails)

    def _made(self, out: Tensor, *read: Any) -> Tensor:
        self._traffic.add(out, *read)
        return out


def count(size: str, rows: int, by_kernels: bool) -> Traffic:
    """One patch of each of `rows` rows, tails included."""
    config = config_of(size)
    with torch.device("meta"):
        model = AudioVae(config.vae).requires_grad_(False)
        latents, index = torch.empty(rows, config.patch_size, config.latent_dim), torch.empty(rows, dtype=torch.int64)
    tails, traffic = model.new_tails(rows + 1), Traffic()
    which = Kernels(traffic) if by_kernels else None
    with (
        patch.object(vae, "fused_snake", lambda x: which, create=True),
        patch.object(vae_layers, "fused_snake", lambda x: which, create=True),
        torch.no_grad(),  # inference mode would hide what a composite operation consists of
        traffic,
    ):
        model.decode(latents, tails, index)
    return traffic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2", help="0.5b, 1.5 or 2")
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 64])
    options = parser.parse_args()
    for by_kernels in (False, True):
        for rows in options.rows:
            found = count(options.size, rows, by_kernels)
            name, ms = "kernels" if by_kernels else "plain layers", 1e3 * found.num_bytes / PER_SECOND
            print(f"{name:<13} {rows:>3} rows: {found.num_bytes / 1e6:9.1f} MB, {ms:6.3f} ms, {found.launches} launches")


if __name__ == "__main__":
    main()
