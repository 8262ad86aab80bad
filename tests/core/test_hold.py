"""A sequence whose reader is behind is left out of plans, gives way first, and loses nothing."""

from __future__ import annotations

import pytest
from tests.core.harness import Harness


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_held_sequence_computes_nothing_and_goes_on_where_it_was(num_steps: int) -> None:
    harness = Harness(slots_per_step=4)
    harness.submit(1, "abcdefghij", patches=4)
    harness.submit(2, "qrstuvwxyz", patches=12)
    for _ in range(num_steps):
        harness.step()
    before = harness.starts(1)
    assert harness.scheduler.hold(1, True)
    for _ in range(4):
        harness.step()
    assert harness.starts(1) == before
    assert harness.scheduler.hold(1, False)
    harness.drain()  # the shadow compares every read
    assert (harness.patches(1), harness.patches(2)) == (4, 12)


def test_a_held_resident_is_the_first_to_give_way() -> None:
    harness = Harness(max_running=2)
    for seq in (1, 2):
        harness.submit(seq, f"abcdef{seq}", patches=9)
    harness.step()
    harness.scheduler.hold(1, True)
    harness.submit(3, "klmnop", patches=2)
    plan = harness.step()
    assert plan.parked == (1,)
    assert [span.seq for span in plan.spans] == [2, 3]
    harness.scheduler.hold(1, False)
    harness.drain()
    assert harness.patches(1) == 9


def test_a_held_sequence_that_waits_holds_nobody_up_and_can_be_cancelled() -> None:
    harness = Harness(max_running=1, tenant_weights={"a": 1.0, "b": 1.0})
    harness.submit(1, "abcdef", tenant="a", patches=3)
    harness.submit(2, "ghijkl", tenant="b", patches=3)
    harness.scheduler.hold(1, True)
    harness.scheduler.hold(1, True)
    harness.step()
    assert harness.starts(2) == [0]
    assert harness.scheduler.cancel(1)
    harness.drain()
    assert not harness.scheduler.hold(1, False)


def test_a_hold_between_plan_and_commit_keeps_the_deadline() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=3)
    plan = harness.plan()
    harness.scheduler.hold(1, True)
    harness.commit(plan)
    assert not harness.plan()
    harness.scheduler.hold(1, False)
    assert "deadline 0.180" in repr(harness.scheduler)
