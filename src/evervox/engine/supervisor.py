"""Keeps a worker alive and every open sequence going: a dead or stuck worker is replaced, and its sequences resumed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import zmq.asyncio

from evervox.engine import messages
from evervox.engine.process import WorkerProcess
from evervox.engine.scratch import Scratch
from evervox.errors import EngineFailure, EvervoxError, Unavailable

if TYPE_CHECKING:
    from evervox.config import Settings
    from evervox.engine.jobs import Job
    from evervox.ledger import Ledger, Line

State = Literal["new", "starting", "ready", "restarting", "failed", "closed"]

MAX_CRASHES = 2
POLL_SECONDS = 0.05
SPARE_SECONDS = 3.0  # before a spare worker is started, which takes one core for two seconds
MAX_LAG = 0.25  # of our own loop: a longer gap says nothing about the worker

log = logging.getLogger(__name__)


class Supervisor:
    """One worker at a time and the table of jobs. Lives on one event loop; nothing here blocks it."""

    def __init__(self, model: Path, settings: Settings, ledger: Ledger) -> None:
        self.state: State = "new"
        self.reason: str | None = "not started"
        self.restarts = 0
        self.beat = messages.Beat()
        self.lines: list[Line] = []
        self._model = model
        self._settings = settings
        self._jobs: dict[int, Job] = {}
        self._ids = itertools.count(1)
        self._in_a_row = 0
        self._on_trial: Job | None = None
        self._worker: WorkerProcess | None = None
        self._spare: WorkerProcess | None = None
        self._workers: set[WorkerProcess] = set()  # those whose end was not seen yet, the present one included
        self._task: asyncio.Task[None] | None = None
        limit = 4 * (settings.max_running + settings.max_waiting)
        ledger.register("jobs", self._jobs, limit=limit, owner="supervisor")
        ledger.register("resume bytes", self._resume_bytes, limit=None, owner="supervisor", unit="bytes")
        ledger.register("worker restarts in a row", lambda: self._in_a_row, limit=settings.max_restarts, owner="supervisor")
        ledger.register("worker processes", self._workers, limit=3, owner="supervisor", unit="processes")
        self._max_jobs = limit

    def _resume_bytes(self) -> int:
        return sum(patch.nbytes for job in self._jobs.values() for patch in job.patches)

    @property
    def pid(self) -> int | None:
        """The present worker's process id."""
        return None if self._worker is None else self._worker.pid

    @property
    def has_room(self) -> bool:
        """Whether the table takes another job: cancelled ones stay in it until the worker has let go of them."""
        return len(self._jobs) < self._max_jobs

    async def start(self) -> None:
        """Load the model in a first worker. Raises what kept it from starting; there is no second try."""
        self.state, self.reason = "starting", "the model is being loaded"
        self._context = zmq.asyncio.Context()
        self._scratch = Scratch()
        try:
            self._worker = await self._spawn()
        except BaseException:
            await self.close()
            raise
        self.state, self.reason = "ready", None
        self._task = asyncio.create_task(self._run(self._worker), name="evervox supervisor")

    async def close(self) -> None:
        """End the worker and every job. Idempotent."""
        was, self.state, self.reason = self.state, "closed", "the engine is closed"
        if was in ("new", "closed"):
            return
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for worker in list(self._workers):
            await self._discard(worker, self._settings.stop_timeout if worker is self._worker else 0.0)
        self._worker = None
        self._fail_all(Unavailable("the engine was closed"))
        self._context.destroy(linger=0)
        self._scratch.remove()

    def submit(self, job: Job) -> None:
        """Take a job in. Its chunks, or its error, come through it."""
        job.id = next(self._ids)
        self._jobs[job.id] = job
        if self.state == "ready" and self._on_trial is None:
            self._send(job)

    def cancel(self, job: Job) -> None:
        """Stop a job in any state; the worker stops working on it within a step."""
        job.is_cancelled = True
        if job.is_done or not job.is_sent or self._worker is None:
            self._jobs.pop(job.id, None)
        else:
            self._worker.send([messages.Cancel(job.id)])
            self._judge()

    def taken(self, job: Job) -> None:
        """One chunk of the job was read: give the worker its credit back, a quarter of the buffer at a time."""
        job.taken += 1
        if job.taken * 4 >= self._settings.stream_buffer and job.is_sent and not job.is_done and self._worker is not None:
            self._worker.send([messages.Credit(job.id, job.taken)])
            job.taken = 0

    def _send(self, job: Job) -> None:
        assert self._worker is not None
        self._worker.send([job.submit(self._settings.stream_buffer)])
        job.is_sent = True

    async def _spawn(self) -> WorkerProcess:
        """A worker that has loaded the model, the spare one if it lives; raises its error or `EngineFailure`."""
        worker, self._spare = self._spare, None
        if worker is None or worker.exit_reason() is not None:
            worker = self._start()
        try:
            await self._loaded(worker)
        except BaseException:
            await self._discard(worker)
            raise
        return worker

    def _start(self, *, is_spare: bool = False) -> WorkerProcess:
        folder = Path(tempfile.mkdtemp(dir=self._scratch.path, prefix="w"))
        worker = WorkerProcess(self._model, self._settings, folder, self._context, is_spare=is_spare)
        self._workers.add(worker)
        return worker

    async def _keep_spare(self) -> None:
        """Have a spare worker. One that has died is replaced when its turn comes."""
        if self._spare is None:
            self._spare = self._start(is_spare=True)
        elif self._spare.exit_reason() is not None:
            dead, self._spare = self._spare, None
            await self._discard(dead)

    async def _discard(self, worker: WorkerProcess, patience: float = 0.0) -> None:
        await worker.end(patience)
        shutil.rmtree(worker.folder, ignore_errors=True)
        self._workers.discard(worker)

    async def _loaded(self, worker: WorkerProcess) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.start_timeout
        while loop.time() < deadline:
            reason = worker.exit_reason()  # before reading: what it said last is then in the socket
            for message in await worker.receive(POLL_SECONDS):
                if isinstance(message, messages.Refused):
                    raise messages.rebuild(message.kind, message.message, message.field)
                if isinstance(message, messages.Ready):
                    return
                if isinstance(message, messages.Warm):
                    worker.send([messages.Load()])
            if reason is not None:
                raise EngineFailure(f"the worker {reason} while it loaded the model")
        raise EngineFailure(f"start_timeout: the worker did not load the model within {self._settings.start_timeout} seconds")

    async def _run(self, worker: WorkerProcess) -> None:
        """Serve from one worker after another until there is no point in it."""
        try:
            while True:
                cause = await self._serve(worker)
                log.error("worker %d %s; %d open sequences are resumed", worker.pid, cause, len(self._jobs))
                self._lose(worker, cause)
                await self._discard(worker)
                worker = await self._replace(cause)
                self._resume(worker)
        except EvervoxError as error:
            self._give_up(str(error))
        except Exception as error:
            log.exception("the supervisor failed")
            self._give_up(f"{type(error).__name__}: {error}")

    async def _serve(self, worker: WorkerProcess) -> str:
        """Hand messages to jobs until the worker is dead or stuck; says which."""
        now = asyncio.get_running_loop().time()
        watch, spare_at = Watch(self._settings.step_timeout, now), now + SPARE_SECONDS
        while True:
            reason = worker.exit_reason()
            for message in await worker.receive(POLL_SECONDS):
                watch.see(message)
                self._take(message)
                self._judge()
            if reason is not None:
                return reason
            now = asyncio.get_running_loop().time()
            if self._settings.spare and now > spare_at:
                spare_at = now + SPARE_SECONDS
                await self._keep_spare()
            if watch.is_stuck(now):
                return f"completed no step for {self._settings.step_timeout} seconds"

    def _take(self, message: messages.ToClient) -> None:
        if isinstance(message, messages.Beat):
            self.beat = message
            self.lines = message.lines or self.lines
            return
        job = self._jobs.get(getattr(message, "id", 0))
        if job is None:
            return
        if isinstance(message, messages.Chunk):
            self._in_a_row = 0
            if not job.is_cancelled:
                job.take(message)
        elif isinstance(message, messages.Failed):
            job.fail(messages.rebuild(message.kind, message.message, message.field))
        if job.is_done or isinstance(message, messages.Gone):
            self._jobs.pop(job.id, None)

    def _lose(self, worker: WorkerProcess, cause: str) -> None:
        """The worker is gone: charge those that it was working on, and let go of the cancelled.

        One that it was working on alone when it died, and that was there when it died before, is the cause. See `_resume`.
        """
        self.state, self.reason, self._worker = "restarting", f"the worker {cause}", None
        held = worker.blackbox.read()
        for job in list(self._jobs.values()):
            job.is_sent = False
            job.crashes += job.id in held
            if held == {job.id} and job.crashes >= MAX_CRASHES:
                job.fail(EngineFailure(f"the worker died {job.crashes} times while it worked on this request"))
            if job.is_done or job.is_cancelled:
                del self._jobs[job.id]

    async def _replace(self, cause: str) -> WorkerProcess:
        """The next worker that starts. Raises `Unavailable` once `max_restarts` in a row have brought no patch."""
        while self._in_a_row < self._settings.max_restarts:
            self._in_a_row += 1
            self.restarts += 1
            if self._in_a_row > 1:
                await asyncio.sleep(min(60.0, self._settings.restart_backoff * 2 ** (self._in_a_row - 2)))
            try:
                return await self._spawn()
            except EvervoxError as error:
                cause = str(error)
                log.error("restart %d in a row failed: %s", self._in_a_row, error)
        raise Unavailable(f"max_restarts: {self._in_a_row} restarts in a row brought no audio; the last cause: {cause}")

    def _resume(self, worker: WorkerProcess) -> None:
        """Give the worker every job, unless two deaths in a row have made suspects of some: then one suspect alone.

        It is cleared by its next patch, and the next suspect follows; when all are cleared, everybody else does.
        """
        self.state, self.reason, self._worker = "ready", None, worker
        waiting = [job for job in self._jobs.values() if not job.is_sent]
        suspects = [job for job in waiting if job.crashes >= MAX_CRASHES]
        self._on_trial = suspects[0] if suspects else None
        for job in suspects[:1] or waiting:
            self._send(job)

    def _judge(self) -> None:
        """End a trial whose suspect was cleared or is gone."""
        job = self._on_trial
        if job is not None and self._worker is not None and (job.crashes == 0 or job.is_done or job.is_cancelled):
            self._resume(self._worker)

    def _give_up(self, reason: str) -> None:
        self.state, self.reason, self._worker = "failed", reason, None
        self._fail_all(Unavailable(reason))

    def _fail_all(self, error: EvervoxError) -> None:
        for job in list(self._jobs.values()):
            job.fail(error)
        self._jobs.clear()


class Watch:
    """Decides that a worker is stuck: `patience` seconds, as far as our own loop was running, without progress.

    Progress is a completed step, or a sign of life with nothing to do.
    """

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience
        self._last = now
        self._still = 0.0
        self._step = 0
        self._encoding = 0.0

    def see(self, message: messages.ToClient) -> None:
        if isinstance(message, messages.Beat):
            if message.step > self._step or not message.is_pending:
                self._still = 0.0
            self._step, self._encoding = message.step, message.encode_seconds

    def is_stuck(self, now: float) -> bool:
        self._still += min(now - self._last, MAX_LAG)
        self._last = now
        return self._still > self._patience or self._encoding > self._patience
