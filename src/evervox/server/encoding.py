"""Encoders on a few threads of their own, so that neither the event loop nor anybody else's threads wait for them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from evervox.audio.encoders import Encoder

T = TypeVar("T")


class Threads:
    """A bounded pool; `pending` counts the calls that have not ended."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._lock = threading.Lock()
        self._pending = 0
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="evervox-encode")

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        self._count(1)
        future = self._pool.submit(call, *args)
        future.add_done_callback(lambda _: self._count(-1))
        return future

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.wrap_future(self.submit(call, *args))

    def close(self) -> None:
        """Ends the threads once their calls have ended; waits for that."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def pending(self) -> int:
        return self._pending

    def _count(self, more: int) -> None:
        with self._lock:
            self._pending += more


class ThreadedEncoder:
    """An encoder of one stream, made by the first push. One call at a time; a running call ends before `close` frees it."""

    def __init__(self, make: Callable[[], Encoder], threads: Threads) -> None:
        self._make, self._threads = make, threads
        self._encoder: Encoder | None = None
        self._running: Future[bytes] | None = None

    @property
    def sample_rate(self) -> int:
        """Of the file; known once something was pushed."""
        assert self._encoder is not None
        return self._encoder.sample_rate

    async def push(self, samples: NDArray[np.float32], *, last: bool) -> bytes:
        """The bytes that are ready; all the rest with the last samples."""
        self._running = self._threads.submit(self._push, samples, last)
        return await asyncio.wrap_future(self._running)

    def close(self) -> None:
        """Any number of times, at any moment; waits for nothing."""
        if self._running is not None:
            self._running.add_done_callback(lambda _: self._free())

    def _push(self, samples: NDArray[np.float32], last: bool) -> bytes:
        if self._encoder is None:
            self._encoder = self._make()
        return self._encoder.push(samples) + (self._encoder.finish() if last else b"")

    def _free(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
