"""The reader's end of a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from evervox.request import AudioChunk

if TYPE_CHECKING:
    from types import TracebackType

    from evervox.engine.utterance import Utterance


class SpeechStream:
    """The audio of one request, chunk by chunk. Read by one task, on the engine's loop.

    Leaving it in any way (the end of a loop over it, `aclose`, cancellation, or dropping it) ends the request at once.
    """

    def __init__(self, utterance: Utterance, sample_rate: int) -> None:
        self._utterance = utterance
        self._loop = asyncio.get_running_loop()
        self.sample_rate = sample_rate

    @property
    def seed(self) -> int:
        """The seed in use, drawn where the request brought none."""
        return self._utterance.seed

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        # A cursor of its own: Python drops it when the loop over it is left, and that is how `break` is noticed.
        return _Cursor(self)

    async def __anext__(self) -> AudioChunk:
        try:
            chunk = await self._utterance.next()
        except BaseException:
            self._utterance.close()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """End the request now. Idempotent."""
        self._utterance.close()

    async def __aenter__(self) -> SpeechStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._utterance.close()

    def _drop(self) -> None:
        if self._utterance.is_closed:
            return
        with suppress(RuntimeError):  # the loop is closed, and the engine with it
            self._loop.call_soon_threadsafe(self._utterance.close)

    def __del__(self) -> None:
        self._drop()


class _Cursor(AsyncIterator[AudioChunk]):
    """One loop over a stream."""

    def __init__(self, stream: SpeechStream) -> None:
        self._stream = stream

    async def __anext__(self) -> AudioChunk:
        return await self._stream.__anext__()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __del__(self) -> None:
        self._stream._drop()
