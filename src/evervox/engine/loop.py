"""The worker's loop: messages in, one step, messages out. It raises only where the worker itself is beyond help."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from evervox.core.errors import BrokenBooks, Refused
from evervox.core.keys import root_key
from evervox.core.sequence import NewSequence
from evervox.engine import messages
from evervox.engine.pipeline import Lost, Pipeline
from evervox.errors import EngineFailure, EvervoxError, TooLarge, Unsupported
from evervox.request import Finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from evervox.core.plan import StepPlan
    from evervox.core.scheduler import Scheduler
    from evervox.engine.blackbox import Blackbox
    from evervox.engine.intake import Admitted, Intake
    from evervox.engine.pipeline import Taken
    from evervox.ledger import Ledger
    from evervox.request import FinishReason
    from evervox.runner.inputs import Emitted, Inputs, Runner

BEAT_SECONDS = 0.1
WAIT_SECONDS = 0.001  # the shortest that a socket can be waited for
LINES_SECONDS = 1.0

log = logging.getLogger(__name__)


class Port(Protocol):
    """The way to the client. `receive` waits up to `timeout` seconds, or until `wake` is called from any thread."""

    def receive(self, timeout: float) -> list[messages.ToWorker]: ...
    def send(self, batch: list[messages.ToClient]) -> None: ...


@dataclass(slots=True)
class _Live:
    """What the loop knows of a sequence besides the scheduler.

    `credit`: the chunks that its reader has room for, less those that are being made.
    """

    submit: messages.Submit
    credit: int
    made: int
    is_planned: bool = False
    cached_slots: int | None = None


class Loop:
    """Owns the scheduler and every sequence in this worker; the runner and the intake do what it says."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        intake: Intake,
        *,
        port: Port,
        blackbox: Blackbox,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._intake = intake
        self._port = port
        self._ledger = ledger
        self._clock = clock
        self._live: dict[int, _Live] = {}
        self._pipeline = Pipeline(runner, blackbox, self._live, clock)
        self._out: list[messages.ToClient] = []
        self._is_leaving = False
        self._is_idle = True
        self._is_proven = True
        self._total_seconds = 0.0
        self._next_beat = self._next_lines = 0.0
        ledger.register("live sequences", self._live, limit=None, owner="loop")
        ledger.register("steps on their way", self._pipeline, limit=runner.steps_ahead + 1, owner="loop")

    def run(self, is_wanted: Callable[[], bool]) -> None:
        """Tick until told to leave, or until nobody wants it. Raises `Lost`."""
        while not self._is_leaving and is_wanted():
            self.tick()

    def tick(self) -> None:
        """One turn."""
        self._take_messages(BEAT_SECONDS if self._is_idle else 0.0)
        while self._pipeline.slack >= WAIT_SECONDS:
            self._take_messages(WAIT_SECONDS)
        began = self._clock()
        self._is_idle = not self._advance()
        if not self._is_idle:
            self._total_seconds += self._clock() - began
            self._is_proven = False
        self._prove()
        self._beat(self._clock())
        if self._out:
            self._port.send(self._out)
            self._out = []

    def _prove(self) -> None:
        """Once the last sequence has gone, the books must balance. A worker whose books do not is replaced."""
        if self._is_proven or not self._scheduler.is_idle:
            return
        try:
            self._scheduler.check()
        except BrokenBooks as error:
            raise Lost(str(error)) from error
        self._is_proven = True

    # Messages in

    def _take_messages(self, timeout: float) -> None:
        for message in self._port.receive(timeout):
            if isinstance(message, messages.Submit):
                self._submit(message)
            elif isinstance(message, messages.Cancel):
                self._forget(message.id)
                self._out.append(messages.Gone(message.id))
            elif isinstance(message, messages.Credit):
                self._give_credit(message.id, message.chunks)
            else:
                self._is_leaving = True
        for admitted in self._intake.ready():
            self._admit(admitted)

    def _submit(self, message: messages.Submit) -> None:
        made = 0 if message.patches is None else message.patches.shape[0]
        self._live[message.id] = _Live(message, message.credit, made)
        admitted = self._intake.offer(message)
        if admitted is not None:
            self._admit(admitted)

    def _admit(self, admitted: Admitted) -> None:
        """Give a sequence to runner and scheduler, unless it was cancelled while its clips were encoded."""
        submit = admitted.submit
        live = self._live.get(submit.id)
        if live is None:
            return
        if submit.is_clip_only and admitted.inputs is not None:
            self._give_latents(submit, admitted.inputs)
            return
        self._pipeline.mark(submit.id)
        try:
            if admitted.inputs is None:
                raise admitted.error or EngineFailure("the prompt was not encoded")
            self._scheduler.submit(self._new_sequence(submit, admitted, live.made), self._clock())
            self._runner.add(submit.id, admitted.inputs)
            live.is_planned = True
            self._hold_if_full(submit.id, live)
        except Refused as error:
            self._fail(submit.id, TooLarge(str(error), field="text"))
        except Exception as error:
            self._fail(submit.id, error)
        self._pipeline.mark()

    def _give_latents(self, submit: messages.Submit, inputs: Inputs) -> None:
        """The encoded clips, as the only chunk."""
        finish = Finish("stop", submit.sampling.seed, 0, submit.tokens.shape[0])
        silence = messages.Array.of(np.zeros(0, np.float32))
        self._out.append(messages.Chunk(submit.id, 0, messages.Array.of(inputs.features), silence, finish))
        self._forget(submit.id)

    def _new_sequence(self, submit: messages.Submit, admitted: Admitted, made: int) -> NewSequence:
        if submit.adapter is not None:
            raise Unsupported("adapters are not loaded by this engine", field="adapter")
        return NewSequence(
            seq=submit.id,
            keys=admitted.keys,
            root=root_key(b"", "", None, submit.tenant.encode()),  # one model and one dtype in a worker
            max_patches=submit.sampling.max_patches,
            priority=submit.priority,
            tenant=submit.tenant,
            done_patches=made,
        )

    def _give_credit(self, seq: int, chunks: int) -> None:
        live = self._live.get(seq)
        if live is not None:
            live.credit += chunks
            if live.is_planned:
                self._scheduler.hold(seq, False)

    def _hold_if_full(self, seq: int, live: _Live) -> None:
        if live.credit <= 0:
            self._scheduler.hold(seq, True)

    def _forget(self, seq: int) -> None:
        """Let go of a sequence in any state."""
        self._scheduler.cancel(seq)
        self._runner.release(seq)
        self._live.pop(seq, None)

    def _fail(self, seq: int, error: Exception) -> None:
        if not isinstance(error, EvervoxError):
            log.error("sequence %d failed", seq, exc_info=error)
        self._forget(seq)
        self._out.append(messages.Failed(seq, *messages.describe(error)))

    # The step

    def _advance(self) -> bool:
        """Plan and launch a step, and take those that must not be waited for any longer. Whether there was anything to do."""
        now = self._clock()
        plan = self._scheduler.plan(now, self._pipeline.last)
        has_work = bool(plan or plan.parked or self._pipeline)
        if plan or plan.parked:
            self._reserve(plan)
            self._pipeline.launch(plan, now)
        while self._pipeline.must_take(plan):
            self._settle(self._pipeline.take())
        return has_work

    def _reserve(self, plan: StepPlan) -> None:
        """A patch that is being made needs room at its reader's."""
        for span in plan.spans:
            live = self._live[span.seq]
            live.cached_slots = span.start if live.cached_slots is None else live.cached_slots
            live.credit -= span.emits
            self._hold_if_full(span.seq, live)

    def _settle(self, taken: Taken) -> None:
        """Take in what a step has computed."""
        for dropped in taken.dropped:
            for span in dropped.spans:
                if span.emits:
                    self._give_credit(span.seq, 1)
        ended = self._scheduler.commit(taken.plan, taken.result.outcomes, self._clock())
        reasons = {end.seq: end.reason for end in ended}
        for patch in taken.result.emitted:
            self._emit(patch, self._live[patch.seq], reasons.get(patch.seq))
        for seq, error in taken.failed.items():
            self._fail(seq, error)

    # Messages out

    def _emit(self, patch: Emitted, live: _Live, reason: FinishReason | None) -> None:
        latents, samples = messages.Array.of(patch.latents), messages.Array.of(patch.samples)
        index = live.made
        live.made += 1
        finish = None if reason is None else self._finish(live, reason)
        self._out.append(messages.Chunk(patch.seq, index, latents, samples, finish))
        if reason is not None:
            self._forget(patch.seq)

    def _finish(self, live: _Live, reason: FinishReason) -> Finish:
        prompt_slots = live.submit.tokens.shape[0]
        cached_slots = min(prompt_slots, live.cached_slots or 0)
        return Finish(reason, live.submit.sampling.seed, live.made, prompt_slots, cached_slots)

    def _beat(self, now: float) -> None:
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        lines = None
        if now >= self._next_lines:
            self._next_lines = now + LINES_SECONDS
            lines = self._ledger.read()
        is_pending = bool(self._pipeline) or any(live.is_planned and live.credit > 0 for live in self._live.values())
        times = (self._intake.encode_seconds, self._pipeline.seconds, self._total_seconds)
        self._out.append(messages.Beat(self._pipeline.steps, is_pending, *times, lines))
