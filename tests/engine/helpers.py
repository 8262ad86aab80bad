"""Reading streams."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from numpy.typing import NDArray

    from evervox.engine.client import Engine
    from evervox.request import AudioChunk, Finish

LONG = "one two three four five six seven eight nine ten " * 4
"""One piece, and some two hundred patches with `min_patches=400` in the tiny model's 512 slots."""


@dataclass(frozen=True)
class Heard:
    samples: NDArray[np.float32]
    finish: Finish
    num_chunks: int


async def listen(stream: AsyncIterator[AudioChunk]) -> Heard:
    """Read to the end; checks that the chunks follow each other without a gap and that only the last has a finish."""
    chunks: list[AudioChunk] = []
    async for chunk in stream:
        assert chunk.start == sum(len(c.samples) for c in chunks)
        assert not chunks or chunks[-1].finish is None
        chunks.append(chunk)
    finish = chunks[-1].finish
    assert finish is not None
    return Heard(np.concatenate([chunk.samples for chunk in chunks]), finish, len(chunks))


async def drain(stream: AsyncIterator[AudioChunk]) -> None:
    async for _ in stream:
        pass


async def settled(engine: Engine) -> None:
    """Wait until nothing is open, here or in the worker."""
    for _ in range(300):
        if not any(line.size for line in engine.stats().ledger if line.name in ("jobs", "live sequences", "open requests")):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(engine.stats())


class Assassin:
    """Signals one worker after another, each once and when it serves."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.pid: int | None = None

    async def strike(self, sign: signal.Signals = signal.SIGKILL) -> None:
        while not self.engine.ready() or self.engine.stats().pid == self.pid:
            await asyncio.sleep(0.01)
        self.pid = self.engine.stats().pid
        assert self.pid is not None
        os.kill(self.pid, sign)

    def made(self) -> dict[int, int]:
        """Patches of every open sequence, by its number from 1 on."""
        return {job.id: len(job.patches) for job in self.engine._supervisor._jobs.values()}

    async def progress(self) -> None:
        """Wait until every open sequence has made a patch more since the last death; one that has just been opened, its first."""
        while self.engine.ready() and self.engine.stats().pid == self.pid:  # what the dead one had sent still comes in
            await asyncio.sleep(0.001)
        while not self.made():
            await asyncio.sleep(0.01)
        before = self.made()
        while any(made <= before.get(number, 0) for number, made in self.made().items()):
            await asyncio.sleep(0.01)
