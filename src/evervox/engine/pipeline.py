"""Steps on their way through the runner: launched and taken in order, retried span by span where they fail."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evervox.engine.pace import Pace
from evervox.runner.inputs import StepResult

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from evervox.core.plan import StepPlan
    from evervox.engine.blackbox import Blackbox
    from evervox.runner.inputs import Flight, Runner

STEP_LANE = 0
MAX_LOST_STEPS = 3

log = logging.getLogger(__name__)


class Lost(RuntimeError):
    """The device or the runner no longer computes anything: this process has to be replaced."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A step that is over.

    `failed`: the error of each span that fails even alone. `dropped`: what was launched after it, in vain.
    """

    plan: StepPlan
    result: StepResult
    failed: dict[int, Exception]
    dropped: tuple[StepPlan, ...]


@dataclass(frozen=True, slots=True)
class _Stillborn:
    """The flight of a launch that failed: its turn to be retried comes once those before it have landed."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error

    def is_done(self) -> bool:
        return True

    def drop(self) -> None:
        pass


class Pipeline:
    """Holds at most `steps_ahead + 1` steps, and tells the blackbox whose they are.

    `live`: the sequences that still exist. `steps` were taken; `seconds` were spent in the runner.
    """

    def __init__(
        self, runner: Runner, blackbox: Blackbox, live: Container[int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runner, self._blackbox, self._live, self._clock = runner, blackbox, live, clock
        self._flights: deque[tuple[StepPlan, Flight]] = deque()
        self._pace = Pace()
        self._began = 0.0  # when the device took up the oldest flight
        self._lost_steps = 0
        self.steps = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def last(self) -> StepPlan | None:
        """The plan that was launched last, if it is still on its way."""
        return self._flights[-1][0] if self._flights else None

    @property
    def slack(self) -> float:
        """Seconds for which the next plan may wait so that whoever arrives is in it, and the device still does not wait."""
        if len(self._flights) != self._runner.steps_ahead or not self._flights or self._flights[0][1].is_done():
            return 0.0
        return self._pace.slack(self._clock() - self._began)

    def must_take(self, plan: StepPlan) -> bool:
        """Whether a step must land before another is planned after `plan`, the last."""
        goes_on = plan and not plan.is_short and not any(isinstance(flight, _Stillborn) for _, flight in self._flights)
        return len(self._flights) > (self._runner.steps_ahead if goes_on else 0)

    def launch(self, plan: StepPlan, planned_at: float) -> None:
        """Start a step. It never raises: a launch that fails shows when it is taken."""
        began = self._clock()
        self.mark(*(span.seq for span in plan.spans))
        flight: Flight
        try:
            flight = self._runner.launch(plan)
        except Exception as error:
            flight = _Stillborn(error)
        self._flights.append((plan, flight))
        now = self._clock()
        self._began = self._began if len(self._flights) > 1 else now
        self._pace.launched(now - planned_at)
        self.seconds += now - began

    def take(self) -> Taken:
        """Wait for the oldest step. Raises `Lost`."""
        began = self._clock()
        plan, flight = self._flights.popleft()
        try:
            taken = Taken(plan, flight.result(), {}, ())
            self._lost_steps = 0
            now = self._clock()
            self._pace.landed(now - self._began)
            self._began = now
        except Exception as error:
            log.warning("step %d failed and is retried one by one: %s: %s", plan.step, type(error).__name__, error)
            taken = self._retry(plan, self._drop())
        self.mark()
        self.steps += 1
        self.seconds += self._clock() - began
        return taken

    def mark(self, *others: int) -> None:
        """Whoever is in a step, and `others`, would be to blame if this process died now."""
        self._blackbox.hold(STEP_LANE, list(dict.fromkeys([*(s.seq for plan, _ in self._flights for s in plan.spans), *others])))

    def _drop(self) -> tuple[StepPlan, ...]:
        dropped = tuple(plan for plan, _ in self._flights)
        while self._flights:
            try:
                self._flights.popleft()[1].drop()
            except Exception as error:
                log.warning("a step that followed it failed as well: %s: %s", type(error).__name__, error)
        return dropped

    def _retry(self, plan: StepPlan, dropped: tuple[StepPlan, ...]) -> Taken:
        """Span by span, of the sequences that are still there."""
        results: list[StepResult] = []
        failed: dict[int, Exception] = {}
        for seq in [span.seq for span in plan.spans if span.seq in self._live]:
            self.mark(seq)
            try:
                results.append(self._runner.launch(plan.only(seq)).result())
                self._lost_steps = 0
            except Exception as error:
                failed[seq] = error
        self._lost_steps += not results
        if failed and not results and (len(failed) > 1 or self._lost_steps >= MAX_LOST_STEPS):
            self.mark(*failed)
            raise Lost("nothing can be computed any more") from next(iter(failed.values()))
        outcomes = tuple(outcome for result in results for outcome in result.outcomes)
        return Taken(plan, StepResult(outcomes, tuple(patch for result in results for patch in result.emitted)), failed, dropped)
