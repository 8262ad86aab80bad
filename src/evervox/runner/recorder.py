"""CUDA graphs as `Recorder`s make them, and the line that shows how far recording is."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from evervox.runner.graphs import Key

MIB = 2**20


class CudaRecording:
    """One CUDA graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, num_bytes: int) -> None:
        self._graph, self._num_bytes = graph, num_bytes

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def replay(self) -> None:
        self._graph.replay()


class CudaRecorder:
    """Records on one side stream out of one pool. A recording that follows a larger one mostly reuses its memory.

    What a call computes is kept by nobody: it must write to buffers that it was given. The thread that records must live as
    long as the recordings: newer releases of torch free cuBLAS's workspaces with the thread that first used them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clear()

    def record(self, call: Callable[[], None]) -> CudaRecording:
        """Runs `call` twice first: libraries choose and load their kernels, and Triton compiles, outside the recording.

        Replays it once: that uploads it, so its memory counts here and its first use is no slower than the next.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                call()
        free = self._free()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            call()
        with torch.cuda.stream(self._stream):
            graph.replay()
        return CudaRecording(graph, max(0, free - self._free()))

    def clear(self) -> None:
        # a stream's workspaces are shared by all graphs recorded on it, so a new set takes a new stream
        self._stream = _stream(self._device, first=True)
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def _free(self) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]


def side_stream(device: torch.device, *, first: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Work done in this context has a stream of its own; where two compete, the one that is `first` goes first."""
    if device.type != "cuda":
        return nullcontext
    return partial(torch.cuda.stream, _stream(device, first=first))


def _stream(device: torch.device, *, first: bool) -> torch.cuda.Stream:
    """It begins after what has been launched so far."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1 if first else 0)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def show_progress(done: int, total: int, key: Key, num_bytes: int) -> None:
    """One line that is overwritten on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        bar = "#" * (30 * done // total)
        line = f"\rrecording shapes [{bar:<30}] {done}/{total} {key}: {num_bytes / MIB:.0f} MiB"
        sys.stderr.write(f"{line:<100}" + ("\n" if done == total else ""))
        sys.stderr.flush()
