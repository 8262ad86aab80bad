"""Compiles every kernel for one compute capability, with the arguments that the wrappers pass, and prints a JSON list of
`[kernel, dtype, shared memory bytes]`. Needs no GPU: `python -m tests.kernels.compile_for 90 bfloat16 64,128`.
"""

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from evervox.kernels import fused, kv_store, paged_decode, paged_packed
from evervox.kernels.paged_attention import paged_attention
from evervox.layers.attention_metadata import AttentionMetadata


class Card:
    """As much of a driver as compiling asks for."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


class Compiling:
    """Stands in for a kernel: a launch compiles it and notes what it takes."""

    def __init__(self, kernel: Any, notes: list[tuple[str, str, int]]) -> None:
        self.kernel, self.notes = kernel, notes

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **constants: Any) -> None:
            made = self.kernel.warmup(*args, grid=grid, **constants)
            assert made.asm["cubin"]
            self.notes.append((self.kernel.__name__, str(args[0].dtype), made.metadata.shared))

        return launch


def compile_all(capability: int, head_dim: int, dtype: torch.dtype) -> list[tuple[str, str, int]]:
    """Packed spans, decode alone and beside them with and without splits, and the small ones, for 16 heads and 2 KV heads."""
    driver.set_active(Card(capability))
    notes: list[tuple[str, str, int]] = []
    for module, names in (
        (paged_packed, ("_packed",)),
        (paged_decode, ("_decode", "_reduce")),
        (kv_store, ("_store",)),
        (fused, ("_add_norm", "_silu_mul", "_rotate")),
    ):
        for name in names:
            kernel = getattr(module, name)
            setattr(module, name, Compiling(kernel.kernel if isinstance(kernel, Compiling) else kernel, notes))
    pool = torch.empty(3, 16, 2, head_dim, dtype=dtype)
    projected = torch.empty(32, 20, head_dim, dtype=dtype)
    query, key, value = projected.split((16, 2, 2), 1)
    for spans, width, longest in ((4, 64, 32), (4, 2, 32), (32, 64, 1), (32, 2, 1)):
        lengths = torch.zeros(spans + 1, dtype=torch.int32)
        tables = torch.zeros(spans, width, dtype=torch.int32)
        metadata = AttentionMetadata(torch.zeros(32, dtype=torch.int64), tables, lengths, lengths[1:], longest)
        kv_store.kv_store(key, value, pool, pool, metadata.slot_mapping)
        paged_attention(query, pool, pool, metadata)
    rows, angles = torch.empty(32, 2048, dtype=dtype), torch.empty(32, head_dim)
    fused.add_norm(rows, rows, rows[0], scale=0.5, eps=1e-5)
    fused.silu_mul(torch.empty(32, 2 * 6144, dtype=dtype))
    assert fused.can_rotate(projected[:, :18], angles)
    fused.rotate(projected[:, :18], angles, angles)
    return notes


def main() -> None:
    capability, dtypes, head_dims = (argument.split(",") for argument in sys.argv[1:])
    cases = [(int(dim), getattr(torch, dtype)) for dtype in dtypes for dim in head_dims]
    print(json.dumps([note for case in cases for note in compile_all(int(capability[0]), *case)]))


if __name__ == "__main__":
    main()
