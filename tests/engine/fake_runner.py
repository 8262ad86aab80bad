"""A runner without a model: every patch is a digest of the prompt, the patch before, the seed and the step.

So a stream that was resumed with a wrong patch, skipped one or repeated one differs from its twin from there on. What it does
besides is told by `FAKE_RUNNER`, a JSON object: `step` and `encode` are seconds; the others say in which way it misbehaves.
A request's `cfg` picks it out: 9.25 raises once it has three patches, 9.5 kills the process there, 9.75 hangs it. With `ahead` 1
it is a device that the host runs ahead of: steps take their time one after another while the host goes on; what goes wrong shows
when the result is taken, and spoils what was launched after it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from evervox.core.plan import Outcome
from evervox.errors import CheckpointError
from evervox.models.voxcpm.config import VoxConfig
from evervox.runner.inputs import Emitted, StepResult

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from evervox.config import Settings
    from evervox.core.plan import Span, StepPlan
    from evervox.ledger import Ledger
    from evervox.runner.inputs import Inputs

RAISES, KILLS, HANGS = 9.25, 9.5, 9.75
NUM_BLOCKS = 4096


@dataclass
class _State:
    inputs: Inputs
    patches: list[NDArray[np.float64]] = field(default_factory=list)


@dataclass
class FakeFlight:
    """Implements `runner.inputs.Flight`."""

    runner: FakeRunner
    plan: StepPlan
    states: dict[int, _State]
    done: StepResult | Exception
    done_at: float

    def is_done(self) -> bool:
        return time.monotonic() >= self.done_at

    def result(self) -> StepResult:
        time.sleep(max(0.0, self.done_at - time.monotonic()))
        self.runner.flights.remove(self)
        if isinstance(self.done, Exception):
            raise self.done
        here = {seq for seq, state in self.states.items() if self.runner.states.get(seq) is state}
        outcomes = tuple(outcome for outcome in self.done.outcomes if outcome.seq in here)
        return StepResult(outcomes, tuple(patch for patch in self.done.emitted if patch.seq in here))

    def drop(self) -> None:
        self.runner.flights.remove(self)
        if not isinstance(self.done, Exception):
            for patch in self.done.emitted:
                self.states[patch.seq].patches.pop()


class FakeRunner:
    """Implements `runner.inputs.Runner`."""

    def __init__(self, config: VoxConfig, settings: Settings | None, behaviour: dict[str, float]) -> None:
        self.num_blocks = NUM_BLOCKS
        self.patch_shape = (config.patch_size, config.latent_dim)
        self.config = config
        self.behaviour = behaviour
        self.steps = 0
        self.may_encode = threading.Event()
        self.may_encode.set()
        self.states: dict[int, _State] = {}
        self.steps_ahead = int(behaviour.get("ahead", 0))
        self.flights: list[FakeFlight] = []

    def register(self, ledger: Ledger) -> None:
        ledger.register("fake sequences", self.states, limit=None, owner="fake runner")

    def add(self, seq: int, inputs: Inputs) -> None:
        assert inputs.features.shape[0] == inputs.is_audio.sum()
        self.states[seq] = _State(inputs, [] if inputs.patches is None else list(inputs.patches))

    def release(self, seq: int) -> None:
        self.states.pop(seq, None)

    def encode(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        time.sleep(self.behaviour.get("encode", 0.0))
        self.may_encode.wait()
        patches = len(samples) // self.config.encoder_samples_per_patch
        return np.full((patches, *self.patch_shape), samples.mean(), np.float32)

    def launch(self, plan: StepPlan) -> FakeFlight:
        assert len(self.flights) <= self.steps_ahead
        done: StepResult | Exception
        try:
            done = RuntimeError("spoilt") if self._is_spoilt() else self._compute(plan)
        except Exception as error:
            if not self.steps_ahead:
                raise
            done = error
        begins_at = max([time.monotonic(), *(flight.done_at for flight in self.flights)])
        done_at = begins_at + self.behaviour.get("step", 0.0)
        flight = FakeFlight(self, plan, {span.seq: self.states[span.seq] for span in plan.spans}, done, done_at)
        self.flights.append(flight)
        return flight

    def _is_spoilt(self) -> bool:
        return any(isinstance(flight.done, Exception) for flight in self.flights)

    def _compute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        if self.steps == self.behaviour.get("fail_at"):
            raise RuntimeError("the fake's step failed")
        if "broken_from" in self.behaviour and self.steps >= self.behaviour["broken_from"]:
            raise RuntimeError("the fake's device is lost")
        for span in plan.spans:
            self._misbehave(self.states[span.seq])
        emitted = [self._emit(span, self.states[span.seq]) for span in plan.spans if span.emits]
        return StepResult(tuple(Outcome(span.seq, self._stops(span)) for span in plan.spans), tuple(emitted))

    def _misbehave(self, state: _State) -> None:
        if len(state.patches) < 3:
            return
        if state.inputs.sampling.cfg == RAISES:
            raise ValueError("the fake cannot do this one")
        if state.inputs.sampling.cfg == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.inputs.sampling.cfg == HANGS:
            time.sleep(3600)

    def _emit(self, span: Span, state: _State) -> Emitted:
        inputs, step = state.inputs, len(state.patches)
        assert span.stop == len(inputs.tokens) + step, "this step does not follow the last one"
        before = state.patches[-1].tobytes() if state.patches else inputs.tokens.tobytes() + inputs.features.tobytes()
        digest = blake2b(before + f"{inputs.sampling.seed} {step}".encode(), digest_size=8).digest()
        draw = np.random.default_rng(int.from_bytes(digest, "big"))
        latents = draw.standard_normal(self.patch_shape)
        state.patches.append(latents)
        samples = np.full(self.config.samples_per_patch, latents[0, 0], np.float32)
        return Emitted(span.seq, latents, samples)

    def _stops(self, span: Span) -> bool:
        """After one patch for each token, but `min_patches` at least."""
        state = self.states[span.seq]
        return span.emits and len(state.patches) >= max(int((~state.inputs.is_audio).sum()), state.inputs.sampling.min_patches)


def create(folder: Path, settings: Settings) -> FakeRunner:
    behaviour: dict[str, Any] = json.loads(os.environ.get("FAKE_RUNNER", "{}"))
    time.sleep(behaviour.get("load", 0.0))
    if "die_at_start" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    if "refuse" in behaviour:
        raise CheckpointError("the fake refuses this folder")
    if "raise_at_start" in behaviour:
        raise MemoryError("the fake has no memory")
    return FakeRunner(VoxConfig.from_checkpoint(folder), settings, behaviour)
