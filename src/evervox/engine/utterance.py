"""One request from text to its last chunk: split into pieces, at most two of them in work, their audio joined in order."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from evervox.conditioning import checks
from evervox.engine.jobs import Job
from evervox.errors import EngineFailure, EvervoxError
from evervox.request import AudioChunk, ClipLatents, Finish, FinishReason, SpeechRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from numpy.typing import NDArray

    from evervox.conditioning.layout import Prompt
    from evervox.engine.messages import Chunk
    from evervox.engine.supervisor import Supervisor
    from evervox.request import Sampling

MAX_PIECES_IN_WORK = 2
FADE_SECONDS = 0.005  # at a join between pieces, so that two unrelated waveforms do not click


class Prepared(Protocol):
    """What preparation gives: a prompt and the numbers that steer its generation."""

    @property
    def prompt(self) -> Prompt: ...
    @property
    def sampling(self) -> Sampling: ...


@dataclass(frozen=True, slots=True)
class Form:
    """What an utterance needs to know of the model."""

    sample_rate: int
    samples_per_patch: int
    has_reference: bool


class Utterance:
    """The engine's side of a stream: owns every job of the request, and `close` lets go of all of them.

    `pieces` are the texts in order; `request.seed` is set. One reader calls `next`. `timer` is cancelled with it.
    """

    def __init__(
        self,
        request: SpeechRequest,
        pieces: Sequence[str],
        form: Form,
        *,
        prepare: Callable[[SpeechRequest], Awaitable[Prepared]],
        supervisor: Supervisor,
        on_close: Callable[[Utterance], object],
    ) -> None:
        assert request.seed is not None
        self.seed = request.seed
        self.began = asyncio.get_running_loop().time()
        self.timer: asyncio.TimerHandle | None = None
        self._request = request
        self._pieces = pieces
        self._form = form
        self._prepare = prepare
        self._supervisor = supervisor
        self._on_close = on_close
        self._jobs: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_PIECES_IN_WORK)
        self._error: EvervoxError | None = None
        self.is_closed = False
        self._tally = _Tally(len(pieces), form.samples_per_patch, _max_patches(request, form))
        self._feeder = asyncio.create_task(self._feed(), name="evervox utterance")

    async def next(self) -> AudioChunk | None:
        """The next chunk; None after the last. Raises the error that ended the request, once."""
        while True:
            if self._error is not None:
                error, self._error = self._error, None  # its traceback will hold this frame: no cycle through here
                raise error
            if self.is_closed:
                return None
            if self._jobs and self._jobs[0].chunks:
                return self._emit(self._jobs[0])
            if self._jobs and self._jobs[0].error is not None:
                self.fail(self._jobs[0].error)
                continue
            self._wake.clear()
            await self._wake.wait()

    def fail(self, error: EvervoxError) -> None:
        """End with an error, which the reader gets next."""
        if not self.is_closed:
            self._error = error
            self.close()

    def close(self) -> None:
        """Let go of everything at once. Idempotent."""
        if self.is_closed:
            return
        self.is_closed = True
        self._feeder.cancel()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for job in self._jobs:
            self._supervisor.cancel(job)
        self._jobs.clear()
        self._wake.set()
        self._on_close(self)

    async def _feed(self) -> None:
        """Prepare and submit the pieces, each as soon as fewer than two are in work."""
        try:
            request = self._request
            for number, text in enumerate(self._pieces):
                await self._room.acquire()
                job = await self._submit(replace(request, text=text))
                if number == 0 and len(self._pieces) > 1 and request.reference is None and request.prompt is None:
                    request = _with_voice(request, text, await _latents(job), self._form)
        except EvervoxError as error:
            self.fail(error)
        except Exception as error:
            self.fail(EngineFailure(f"{type(error).__name__}: {error}"))

    async def _submit(self, request: SpeechRequest) -> Job:
        prepared = await self._prepare(request)
        job = Job(
            prepared.prompt,
            prepared.sampling,
            wake=self._wake.set,
            adapter=request.adapter,
            tenant=request.tenant,
            priority=request.priority,
        )
        self._supervisor.submit(job)
        self._jobs.append(job)
        return job

    def _emit(self, job: Job) -> AudioChunk:
        chunk = job.chunks.popleft()
        self._supervisor.taken(job)
        start, is_joined = self._tally.samples, self._tally.num_done > 0
        finish = self._tally.count(chunk, self.seed)
        samples: NDArray[np.float32] = chunk.samples.numpy()
        if chunk.index == 0 and is_joined:
            _fade(samples, self._form.sample_rate)
        if chunk.finish is not None and finish is None:
            _fade(samples[::-1], self._form.sample_rate)
        if chunk.finish is not None:
            self._jobs.popleft()
            self._room.release()
        if finish is not None:
            self.close()
        return AudioChunk(samples, start, self._form.sample_rate, finish)


class _Tally:
    """Counts what the reader has been given, and knows when that was all."""

    def __init__(self, num_pieces: int, samples_per_patch: int, max_patches: float) -> None:
        self.samples = 0
        self.num_done = 0
        self._num_pieces = num_pieces
        self._samples_per_patch = samples_per_patch
        self._max_patches = max_patches
        self._patches = self._prompt_slots = self._cached_slots = 0
        self._reason: FinishReason = "stop"

    def count(self, chunk: Chunk, seed: int) -> Finish | None:
        """One more patch; the finish if it was the last of the request."""
        self._patches += 1
        self.samples += self._samples_per_patch
        if chunk.finish is not None:
            self.num_done += 1
            self._prompt_slots += chunk.finish.prompt_slots
            self._cached_slots += chunk.finish.cached_slots
            self._reason = chunk.finish.reason if self._reason == "stop" else self._reason
        is_all = self.num_done == self._num_pieces
        if not is_all and self._patches < self._max_patches:
            return None
        return Finish(self._reason if is_all else "length", seed, self._patches, self._prompt_slots, self._cached_slots)


async def _latents(job: Job) -> NDArray[Any]:
    """All patches of a job, once it is done."""
    await job.done.wait()
    if job.error is not None:
        raise job.error
    return np.stack(job.patches)


def _with_voice(request: SpeechRequest, text: str, latents: NDArray[Any], form: Form) -> SpeechRequest:
    """The request in the voice that spoke `text`: as its reference, or its prompt where the model knows no reference."""
    clip = ClipLatents(latents.astype(np.float32), blake2b(latents.tobytes(), digest_size=16).digest())
    if form.has_reference:
        return replace(request, reference=clip)
    return replace(request, prompt=clip, prompt_text=text, instructions=None)


def _fade(samples: NDArray[np.float32], sample_rate: int) -> None:
    """Raise the first samples from silence, in place."""
    count = min(len(samples), int(FADE_SECONDS * sample_rate))
    samples[:count] *= np.linspace(0, 1, count, dtype=np.float32)


def _max_patches(request: SpeechRequest, form: Form) -> float:
    if request.max_seconds is None:
        return float("inf")
    seconds = checks.number(request.max_seconds, "max_seconds", 0, above=True)
    return max(1, int(seconds * form.sample_rate / form.samples_per_patch))
