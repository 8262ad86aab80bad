"""The next step is planned late enough to take in who arrives, and early enough for the device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.in_process import Bench, HandPort

from evervox.engine.pace import NUM_STEPS, Pace

if TYPE_CHECKING:
    from pathlib import Path

    from evervox.engine import messages

seconds = st.floats(0, 10)


@given(steps=st.lists(seconds, max_size=20), leads=st.lists(seconds, max_size=20), running=seconds)
def test_it_never_waits_longer_than_the_shortest_step_leaves_after_planning(
    steps: list[float], leads: list[float], running: float
) -> None:
    pace = Pace()
    for step in steps:
        pace.landed(step)
    for lead in leads:
        pace.launched(lead)
    assert (
        0 <= pace.slack(running) <= max(0.0, min(steps[-NUM_STEPS:], default=0.0) - running - 2 * (leads[-1] if leads else 0.0))
    )


def test_a_slow_launch_is_remembered_and_forgotten() -> None:
    pace = Pace()
    pace.landed(1.0)
    pace.launched(0.4)
    after_one = pace.slack(0.0)
    for _ in range(100):
        pace.launched(0.001)
    assert after_one < 0.2
    assert pace.slack(0.0) > 0.99


class LatePort(HandPort):
    """Waits as a socket does. Somebody arrives in the middle of a step."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.arrived_in, self.began = bench, 0, 0.0

    def receive(self, timeout: float) -> list[messages.ToWorker]:
        time.sleep(timeout)
        flights = self.bench.runner.flights
        if self.bench.runner.steps > 4 and not self.arrived_in and flights and time.monotonic() > flights[0].done_at - 0.15:
            self.arrived_in = flights[0].plan.step
            self.bench.submit(2, patches=2)
        return super().receive(timeout)


def test_who_arrives_while_a_step_is_computed_is_in_the_next(checkpoint: Path, tmp_path: Path) -> None:
    bench = Bench(checkpoint, tmp_path, {"ahead": 1, "step": 0.3})
    port = LatePort(bench)
    bench.port = bench.loop._port = port
    plans: list[Any] = []
    launch = bench.runner.launch
    bench.runner.launch = lambda plan: (plans.append(plan), launch(plan))[1]  # type: ignore[method-assign]
    try:
        bench.submit(1, patches=12)
        began = time.monotonic()
        while not bench.chunks(2):
            bench.tick()
        first = next(plan for plan in plans if any(span.seq == 2 for span in plan.spans))
        assert first.step == port.arrived_in + 1
        # the device never waited: its steps follow each other
        assert time.monotonic() - began == pytest.approx(0.3 * bench.loop._pipeline.steps, rel=0.25)
    finally:
        bench.close()
