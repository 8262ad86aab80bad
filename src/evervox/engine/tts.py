"""The engine without asyncio: one thread runs its loop, and calls wait for it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from evervox.engine.client import Engine
from evervox.engine.files import write_audio
from evervox.errors import BadRequest, Unavailable
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from numpy.typing import NDArray

    from evervox.engine.client import EngineInfo, EngineStats
    from evervox.engine.stream import SpeechStream
    from evervox.engine.voice import Voice
    from evervox.request import AudioChunk, Finish

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Speech:
    """A whole utterance: float32 mono `samples` in [-1, 1] at `sample_rate`."""

    samples: NDArray[np.float32]
    sample_rate: int
    finish: Finish

    @property
    def seed(self) -> int:
        """What to pass to hear it again."""
        return self.finish.seed

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def save(self, path: str | Path) -> None:
        """Write a file in the format of its suffix: wav, mp3, flac, opus (or ogg), aac, pcm. Raises `BadRequest`."""
        write_audio(Path(path).expanduser(), self.samples, self.sample_rate)


class TTS:
    """An engine for programs without an event loop. Use it in `with`, or call `close`; threads may share it.

    with TTS() as tts:
        tts.speak("Hello.").save("hello.wav")
    """

    def __init__(self, model: str | Path | Engine | None = None, **settings: Any) -> None:
        """Loads the model, or opens an engine that was made by `Engine.start` and not opened yet.

        Raises `ConfigError`, `CheckpointError` and what keeps the worker from starting.
        """
        self._engine = model if isinstance(model, Engine) else Engine.start(model, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evervox-tts", daemon=True)
        self._thread.start()
        try:
            self._wait(self._engine.open())
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def speak(self, text: str, *, voice: Voice | None = None, **fields: Any) -> Speech:
        """Speak `text`; `fields` are those of `SpeechRequest`. Raises the errors of the engine."""
        chunks = list(self.stream(text, voice=voice, **fields))
        finish = chunks[-1].finish
        assert finish is not None, "the last chunk says how it ended"
        return Speech(np.concatenate([chunk.samples for chunk in chunks]), chunks[0].sample_rate, finish)

    def stream(self, text: str, *, voice: Voice | None = None, **fields: Any) -> Iterator[AudioChunk]:
        """Chunks as they are made. Leaving or closing the generator ends the request at once."""
        return self.send(self._request(text, voice, fields))

    def send(self, request: SpeechRequest) -> Iterator[AudioChunk]:
        """`stream` for a request that is whole already."""
        stream = self._wait(self._open(request))
        try:
            while (chunk := self._wait(_next(stream))) is not None:
                yield chunk
        finally:
            if self._thread.is_alive():
                self._wait(stream.aclose())

    def close(self) -> None:
        """End the engine and its thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._wait(self._engine.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> TTS:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, text: str, voice: Voice | None, fields: dict[str, Any]) -> SpeechRequest:
        if voice is not None:
            fields = {**fields, **voice.fields(has_reference=self.info.has_reference)}
        unknown = fields.keys() - SpeechRequest.__slots__
        if unknown:
            name = min(unknown)
            raise BadRequest(f"there is no field {name!r}; known are {', '.join(SpeechRequest.__slots__)}", field=name)
        return SpeechRequest(text=text, **fields)

    async def _open(self, request: SpeechRequest) -> SpeechStream:
        return self._engine.speak(request)

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run on the engine's loop and give back what comes of it; an interrupt here ends it there."""
        if self._loop.is_closed():
            work.close()
            raise Unavailable("the engine is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


async def _next(stream: SpeechStream) -> AudioChunk | None:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None
