"""The engine as its users see it: ask for speech, read chunks; everything behind is one worker process and its supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from evervox.conditioning import checks
from evervox.conditioning.limits import Limits
from evervox.conditioning.prepare import DRAWN_SEEDS, Preparer
from evervox.conditioning.split import split
from evervox.conditioning.text import TextTokenizer
from evervox.config import Settings, unknown_variables
from evervox.engine.jobs import Job
from evervox.engine.stream import SpeechStream
from evervox.engine.supervisor import State, Supervisor
from evervox.engine.utterance import Form, Prepared, Utterance
from evervox.engine.voice import Voice
from evervox.errors import DeadlineExceeded, Overloaded, Unavailable
from evervox.ledger import Ledger, Line
from evervox.models.voxcpm.config import VoxConfig
from evervox.models.voxcpm.hub import checkpoint_folder
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

CLIP_THREADS = 2

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The loaded model and what it takes. Seconds, samples, characters and patches by name."""

    name: str
    model: Path
    sample_rate: int
    patch_seconds: float
    samples_per_patch: int
    has_reference: bool
    timesteps: int
    max_length: int
    max_text: int
    max_running: int
    max_waiting: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Whether a request sent now would be worked on, and if not, why."""

    is_ready: bool
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.is_ready


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at the engine. `model_share` is the part of the steps' time that the model took; `ledger` has both processes."""

    state: State
    reason: str | None
    pid: int | None
    open_requests: int
    steps: int
    restarts: int
    model_share: float
    ledger: tuple[Line, ...]


class Engine:
    """Speech from one model. Made by `Engine.start`; belongs to the event loop that opened it.

    async with Engine.start() as engine:
        async for chunk in engine.speak(SpeechRequest(text="Hello.")):
            ...
    """

    def __init__(self, model: Path, settings: Settings) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self._model = model
        self._config = VoxConfig.from_checkpoint(model)
        limits = Limits(settings.max_text, settings.max_clip_seconds, settings.max_clip_bytes)
        self._tokenizer = TextTokenizer.from_checkpoint(model)
        self._preparer = Preparer(self._config, self._tokenizer, limits).prepare
        self._open: set[Utterance] = set()
        self._is_draining = False
        self._seconds = 1.0  # how long a request takes, averaged
        self._supervisor = Supervisor(model, settings, self.ledger)
        self._threads = ThreadPoolExecutor(CLIP_THREADS, thread_name_prefix="evervox-clip")
        self.ledger.register("open requests", self._open, limit=self._max_open, owner="engine")

    @classmethod
    def start(cls, model: str | Path | None = None, **settings: Any) -> Engine:
        """An engine to enter with `async with` (or `open` and `close`). `model` is a folder or a hub id, which is
        downloaded first; None is the small voice that ships with the package.

        Raises `ConfigError` and `CheckpointError`; entering raises what keeps the worker from loading the model.
        """
        for name, meant in unknown_variables(os.environ).items():
            log.warning("%s: there is no such setting%s", name, f"; {meant} is one" if meant else "")
        return cls(checkpoint_folder(model), Settings.read(**settings))

    async def open(self) -> None:
        """Load the model. `speak` and `ready` may be called meanwhile and say that it is not there yet."""
        await self._supervisor.start()

    async def close(self) -> None:
        """End every stream with `Unavailable`, and the worker. Idempotent."""
        for utterance in list(self._open):
            utterance.fail(Unavailable("the engine was closed"))
        await self._supervisor.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def drain(self) -> None:
        """Take no new requests; return when the open ones have ended."""
        self._is_draining = True
        while self._open:
            await asyncio.sleep(0.02)

    async def __aenter__(self) -> Engine:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def info(self) -> EngineInfo:
        config, settings = self._config, self.settings
        return EngineInfo(
            name=config.name,
            model=self._model,
            sample_rate=config.sample_rate,
            patch_seconds=config.patch_seconds,
            samples_per_patch=config.samples_per_patch,
            has_reference=config.has_reference,
            timesteps=config.timesteps,
            max_length=config.max_length,
            max_text=settings.max_text,
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
        )

    def ready(self) -> Ready:
        """While a worker is being restarted the answer is no, and requests are taken all the same."""
        if self._is_draining:
            return Ready(False, "the engine is draining")
        return Ready(self._supervisor.state == "ready", self._supervisor.reason)

    def stats(self) -> EngineStats:
        """Sizes and limits of everything that outlives a request, here and in the worker."""
        supervisor, beat = self._supervisor, self._supervisor.beat
        return EngineStats(
            state=supervisor.state,
            reason=supervisor.reason,
            pid=supervisor.pid,
            open_requests=len(self._open),
            steps=beat.step,
            restarts=supervisor.restarts,
            model_share=beat.model_seconds / beat.total_seconds if beat.total_seconds else 0.0,
            ledger=(*self.ledger.read(), *supervisor.lines),
        )

    def check(self, request: SpeechRequest) -> None:
        """Raise what `speak` or its stream would raise of `BadRequest`; may be called before the engine is open, and blocks."""
        for text in self._pieces(request):
            self._preparer(replace(request, text=text))

    def unknown_words(self, text: str) -> list[str]:
        """Words that the model was never taught, where its checkpoint says which it was; they come out as guesses."""
        vocabulary = self._tokenizer.vocabulary
        return [] if vocabulary is None else vocabulary.unknown(text)

    def speak(self, request: SpeechRequest) -> SpeechStream:
        """Take a request and start work on it. Call it on the engine's loop.

        Raises at once `Overloaded` (with `retry_after`), `Unavailable`, and `BadRequest` for what can be seen from the text;
        reading the stream raises those too, and `DeadlineExceeded` and `EngineFailure`.
        """
        self._admit()
        pieces = self._pieces(request)
        seconds = self._timeout(request)
        seed = secrets.randbelow(DRAWN_SEEDS) if request.seed is None else request.seed
        utterance = Utterance(
            replace(request, seed=seed),
            pieces,
            Form(self._config.sample_rate, self._config.samples_per_patch, self._config.has_reference),
            prepare=self._prepare,
            supervisor=self._supervisor,
            on_close=self._closed,
        )
        self._open.add(utterance)
        if seconds is not None:
            error = DeadlineExceeded(f"timeout: the request was not done after {seconds:g} seconds")
            utterance.timer = asyncio.get_running_loop().call_later(seconds, utterance.fail, error)
        return SpeechStream(utterance, self._config.sample_rate)

    async def encode(self, voice: Voice) -> Voice:
        """The voice as latents, to be kept: encoded by the worker beside its streams. Raises what a stream raises."""
        self._admit()
        fields = voice.fields(has_reference=self._config.has_reference)
        prepared = await self._prepare(SpeechRequest(text="a", **fields))
        job = Job(prepared.prompt, prepared.sampling, wake=lambda: None, is_clip_only=True)
        self._supervisor.submit(job)
        try:
            await job.done.wait()
        finally:
            self._supervisor.cancel(job)
        if job.error is not None:
            raise job.error
        return Voice.from_latents(job.patches[0], voice.transcript)

    def _admit(self) -> None:
        """Room for one more, or the error that says why not."""
        if self._is_draining:
            raise Unavailable("the engine is draining")
        if self._supervisor.state not in ("ready", "restarting"):
            raise Unavailable(self._supervisor.reason or "the engine is not open")
        if len(self._open) >= self._max_open or not self._supervisor.has_room:
            wait = self._seconds * (1 + self.settings.max_waiting / self.settings.max_running) / 2
            limit = f"max_running {self.settings.max_running} + max_waiting {self.settings.max_waiting}"
            raise Overloaded(
                f"max_waiting: {len(self._open)} requests are open, the limit is {limit}", retry_after=max(1.0, wait)
            )

    @property
    def _max_open(self) -> int:
        return self.settings.max_running + self.settings.max_waiting

    def _pieces(self, request: SpeechRequest) -> list[str]:
        """The texts to speak one after another. A text that is not fit to be split goes to the rules of preparation as it is."""
        text = checks.text(request.text, "text", self.settings.max_text)
        return split(text, self.settings.piece_text) or [text]

    async def _prepare(self, request: SpeechRequest) -> Prepared:
        """Text alone is quick; a clip is read and resampled on a thread of our own, never the loop's default executor."""
        if request.reference is None and request.prompt is None:
            return self._preparer(request)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._preparer, request)

    def _timeout(self, request: SpeechRequest) -> float | None:
        if request.timeout is None:
            return self.settings.request_timeout
        return checks.number(request.timeout, "timeout", 0, above=True)

    def _closed(self, utterance: Utterance) -> None:
        self._open.discard(utterance)
        self._seconds += 0.1 * (asyncio.get_running_loop().time() - utterance.began - self._seconds)
