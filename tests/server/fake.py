"""An engine without a model: it speaks a tone, one chunk per `step` seconds, and fails where a test asks it to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from evervox.engine.voice import Voice
from evervox.errors import BadRequest, EngineFailure, EvervoxError, Overloaded
from evervox.ledger import Line
from evervox.request import AudioChunk, Finish, SpeechRequest

RATE = 16000
PATCH = 2560


@dataclass(frozen=True)
class FakeInfo:
    name: str = "fake-voice"
    sample_rate: int = RATE
    patch_seconds: float = PATCH / RATE
    has_reference: bool = True
    timesteps: int = 10


@dataclass(frozen=True)
class FakeReady:
    is_ready: bool = True
    reason: str | None = None


@dataclass(frozen=True)
class FakeStats:
    open_requests: int
    restarts: int
    ledger: tuple[Line, ...]


@dataclass
class FakeEngine:
    """`fail_at`: the chunk at which `error` is raised. The number of chunks is that of the text's words, three at least."""

    step: float = 0.0
    fail_at: int | None = None
    error: EvervoxError = field(default_factory=lambda: EngineFailure("the step failed"))
    max_open: int = 1000
    info: FakeInfo = field(default_factory=FakeInfo)
    state: FakeReady = field(default_factory=FakeReady)
    open: set[FakeStream] = field(default_factory=set)
    requests: list[SpeechRequest] = field(default_factory=list)

    def ready(self) -> FakeReady:
        return self.state

    def stats(self) -> FakeStats:
        return FakeStats(len(self.open), 0, (Line("open requests", len(self.open), self.max_open, "engine", "items"),))

    def speak(self, request: SpeechRequest) -> FakeStream:
        self.requests.append(request)
        if len(self.open) >= self.max_open:
            raise Overloaded(f"max_waiting: the limit is {self.max_open}", retry_after=2.5)
        if not request.text.strip():
            raise BadRequest("text is empty", field="text")
        return FakeStream(self, request)

    async def encode(self, voice: Voice) -> Voice:
        """Latents that tell which clip they were made from."""
        if isinstance(voice.clip, bytes) and voice.clip.startswith(b"not audio"):
            field = "reference" if self.info.has_reference else "prompt"
            raise BadRequest("not a file that can be decoded", field=field)
        assert isinstance(voice.clip, bytes)
        return Voice.from_latents(latents_of(voice.clip), voice.transcript)


def latents_of(clip: bytes) -> np.ndarray:
    return np.full((2, 2, 4), sum(clip) % 1000, np.float32)


class FakeStream:
    def __init__(self, engine: FakeEngine, request: SpeechRequest) -> None:
        self._engine, self._request = engine, request
        self._index = 0
        self.num_chunks = max(3, len(request.text.split()))
        self.seed = 5 if request.seed is None else request.seed
        engine.open.add(self)

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> AudioChunk:
        if self._index == self._engine.fail_at:
            raise self._engine.error
        if self._index == self.num_chunks:
            raise StopAsyncIteration
        for clip in (self._request.reference, self._request.prompt):
            if isinstance(clip, bytes) and clip.startswith(b"not audio"):
                name = "reference" if clip is self._request.reference else "prompt"
                raise BadRequest("not a file that can be decoded", field=name)
        await asyncio.sleep(self._engine.step)
        self._index += 1
        return tone(self._index - 1, self.num_chunks, self.seed)

    async def aclose(self) -> None:
        self._engine.open.discard(self)


def tone(index: int, num_chunks: int, seed: int) -> AudioChunk:
    """Chunk `index` of an utterance."""
    start = index * PATCH
    samples = (0.3 * np.sin(np.arange(start, start + PATCH) * (2 * np.pi * 220 / RATE))).astype(np.float32)
    last = index == num_chunks - 1
    return AudioChunk(samples, start, RATE, Finish("stop", seed, num_chunks, 7, 3) if last else None)
