"""Compiles every kernel for one compute capability, with the arguments that the wrappers pass, and prints a JSON list of
`[kernel, dtype, shared memory bytes]`. Needs no GPU: `python -m tests.kernels.compile_for 90 bfloat16 64,128`.
"""

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from evervox.kernels import fused, kv_store, paged_decode, paged_packed, snake
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


def watch(notes: list[tuple[str, str, int]], *found: tuple[Any, tuple[str, ...]]) -> None:
    """Replace the kernels of some modules by what compiles them."""
    for module, names in found:
        for name in names:
            kernel = getattr(module, name)
            setattr(module, name, Compiling(kernel.kernel if isinstance(kernel, Compiling) else kernel, notes))


def compile_all(head_dim: int, dtype: torch.dtype) -> list[tuple[str, str, int]]:
    """Packed spans, decode alone and beside them with and without splits, and the small ones, for 16 heads and 2 KV heads."""
    notes: list[tuple[str, str, int]] = []
    watch(notes, (paged_packed, ("_packed",)), (paged_decode, ("_decode", "_reduce")), (kv_store, ("_store",)))
    watch(notes, (fused, ("_add_norm", "_silu_mul", "_rotate")))
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


def compile_vae(*starts: int | None) -> list[tuple[str, str, int]]:
    """With tails that begin at these floats of a row, aligned and not; None: without a stream."""
    notes: list[tuple[str, str, int]] = []
    watch(notes, (snake, ("_depthwise", "_mono", "_windows")))
    x, channels, kernel = torch.empty(2, 48, 96), torch.empty(96), torch.empty(96, 1, 1, 7)
    state = torch.empty(2, 2, 60 * 96)

    def tails(steps: int, start: int | None) -> tuple[torch.Tensor | None, ...]:
        return (None, None) if start is None else tuple(state[:, :, start : start + steps * 96])

    for start in starts:
        snake.depthwise(x, kernel, channels, *tails(54, start), dilation=9, alpha=channels, shift=channels)
        snake.depthwise(x, kernel, channels, *tails(6, start), dilation=1)
        snake.mono(x, channels, x.view(-1)[: 7 * 96], channels, *tails(6, start))
        snake.windows(x, channels, channels, *tails(1, start), context=1, hop=1)
        snake.windows(x, channels, None, *tails(6, start), context=6, hop=5)
    return notes


def main() -> None:
    capability, dtypes, head_dims = (argument.split(",") for argument in sys.argv[1:])
    driver.set_active(Card(int(capability[0])))
    notes = [note for dtype in dtypes for dim in head_dims for note in compile_all(int(dim), getattr(torch, dtype))]
    print(json.dumps(notes + (compile_vae(0, 1, None) if "float32" in dtypes else compile_vae(0))))


if __name__ == "__main__":
    main()
