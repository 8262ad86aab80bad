"""A plan that follows one whose outcomes are not known yet."""

from __future__ import annotations

import pytest
from tests.core.harness import Harness

from evervox.core.errors import BrokenBooks
from evervox.core.plan import Outcome, StepPlan


def follow(harness: Harness, plan: StepPlan) -> StepPlan:
    """Plan and compute after `plan`, which is computed and not committed."""
    following = harness.scheduler.plan(harness.now, after=plan)
    harness.scheduler.check()
    harness.plans.append(following)
    harness.compute(following)
    return following


def begin(harness: Harness) -> StepPlan:
    plan = harness.plan()
    harness.compute(plan)
    return plan


def test_it_goes_on_where_the_other_will_be() -> None:
    harness = Harness(slots_per_step=6)
    harness.submit(1, "abcdefghij", patches=5)
    plan = begin(harness)
    seen = [plan]
    for _ in range(4):
        following = follow(harness, plan)
        harness.commit(plan)
        seen.append(plan := following)
    assert [(span.start, span.stop, span.emits) for p in seen for span in p.spans] == [
        (0, 6, False),
        (6, 10, True),
        (10, 11, True),
        (11, 12, True),
        (12, 13, True),
    ]


def test_nothing_is_planned_beyond_the_last_patch_of_all() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=2)
    first = begin(harness)
    second = follow(harness, first)
    assert not follow(harness, second)
    harness.commit(first)
    harness.commit(second)
    assert [(end.seq, end.reason) for end in harness.ended] == [(1, "length")]


def test_what_is_computed_after_a_stop_is_ignored_and_its_blocks_are_free_at_once() -> None:
    harness = Harness()
    harness.submit(1, "abcde", patches=9)
    first = begin(harness)
    second = follow(harness, first)
    harness.commit(first, stops=(1,))
    assert harness.scheduler.num_free_blocks == harness.limits.num_blocks
    harness.submit(2, "abcdefgh", patches=2)
    third = follow(harness, second)
    assert third.spans[0].start == 4  # the prompt's whole block, published with the first
    harness.commit(second)
    harness.commit(third)
    assert [end.seq for end in harness.ended] == [1]


def test_nobody_who_is_being_computed_gives_way_until_all_is_committed() -> None:
    harness = Harness(max_running=1, preempt_slack=0.01, first_audio_target=0.01)
    harness.submit(1, "abcdef", patches=9, priority="batch")
    first = begin(harness)
    harness.submit(2, "ghijkl", patches=1)
    second = follow(harness, first)
    assert (second.is_short, second.parked) == (True, ())
    harness.commit(first)
    harness.commit(second)
    third = harness.step()
    assert (third.parked, [span.seq for span in third.spans]) == ((1,), [2])
    harness.drain()
    assert harness.patches(1) == 9


def test_who_lacks_a_block_that_only_a_busy_one_could_give_sits_out_one_step() -> None:
    harness = Harness(num_blocks=3, block_size=4, max_running=2)
    harness.submit(1, "abcd", patches=8)
    harness.submit(2, "ijkl", patches=5)
    plan = begin(harness)
    for _ in range(20):
        following = follow(harness, plan)
        harness.commit(plan)
        if following.is_short:
            harness.commit(following)
            break
        plan = following
    assert following.is_short
    assert len(harness.step().parked) == 1
    harness.drain()
    assert {end.seq for end in harness.ended} == {1, 2}


def test_a_step_that_was_not_computed_takes_what_follows_with_it() -> None:
    harness = Harness()
    for seq in (1, 2):
        harness.submit(seq, f"abc{seq}", patches=9)
    first = begin(harness)
    second = follow(harness, first)
    harness.scheduler.commit(first, [Outcome(1)], harness.now)
    harness.scheduler.commit(second, [Outcome(1), Outcome(2)], harness.now)
    starts = {span.seq: span.start for span in harness.plan().spans}
    assert starts == {1: 5, 2: 0}


def test_a_plan_that_follows_nothing_makes_what_was_not_committed_void() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=9)
    first = begin(harness)
    second = follow(harness, first)
    assert harness.plan().spans == first.spans
    for void in (first, second):
        with pytest.raises(BrokenBooks, match="cannot be committed"):
            harness.commit(void)


def test_order_matters() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=9)
    first = begin(harness)
    second = follow(harness, first)
    with pytest.raises(BrokenBooks, match="not the last"):
        harness.scheduler.plan(harness.now, after=first)
    with pytest.raises(BrokenBooks, match="does not continue"):
        harness.commit(second)


def test_an_identity_that_comes_back_takes_nothing_from_its_former_self() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=9)
    first = begin(harness)
    second = follow(harness, first)
    harness.scheduler.cancel(1)
    harness.submit(1, "abcdefg", patches=1)
    harness.commit(first)
    harness.commit(second)
    assert harness.ended == []
    assert harness.step().spans[0].start == 0
