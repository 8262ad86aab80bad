"""Directed traces: each is a way in which an engine of this kind has failed."""

from __future__ import annotations

import pytest
from tests.core.harness import Harness

from evervox.core.errors import BrokenBooks
from evervox.core.plan import Ended, Outcome
from evervox.core.scheduler import Refused

# The cache


def test_growth_20_000_distinct_prompts_leave_at_most_64_entries() -> None:
    harness = Harness()
    scheduler, most = harness.scheduler, 0
    for seq in range(20_000):
        harness.submit(seq, f"{seq:08d}x", patches=1)
        plan = scheduler.plan(0.0)
        scheduler.commit(plan, [Outcome(seq)], 0.0)
        del harness.requests[seq]
        most = max(most, scheduler.table_size)
    scheduler.check()
    assert 0 < most <= 64
    assert scheduler.is_idle


def test_a_repeat_after_release_still_hits() -> None:
    harness = Harness()
    harness.submit(1, "abcdefghij")
    harness.drain()
    harness.submit(2, "abcdefghij")
    harness.drain()
    assert harness.starts(2)[0] == 8


def test_two_prefixes_with_one_text_on_three_blocks_never_share_it() -> None:
    harness = Harness(num_blocks=3)
    for seq, prompt in enumerate(("AAAAtextx", "BBBBtextx", "AAAAtextx", "BBBBtextx")):
        harness.submit(seq, prompt, patches=1)
        harness.drain()  # the shadow compares every read
    assert harness.starts(1)[0] == 0


def test_adapters_one_two_none_and_a_reloaded_one_share_nothing() -> None:
    harness = Harness()
    for seq, load in enumerate((1, 2, None, 3)):  # 3 is the first adapter's second load
        harness.submit(seq, "abcdefghij", adapter=load)
        harness.drain()
    assert [harness.starts(seq)[0] for seq in range(4)] == [0, 0, 0, 0]
    harness.submit(4, "abcdefghij", adapter=2)
    harness.drain()
    assert harness.starts(4)[0] == 8


def test_tenants_with_salts_share_nothing() -> None:
    harness = Harness()
    for seq, salt in enumerate((b"", b"one", b"two", b"one")):
        harness.submit(seq, "abcdefghij", salt=salt)
        harness.drain()
    assert [harness.starts(seq)[0] for seq in range(4)] == [0, 0, 0, 8]


def test_a_failing_step_publishes_nothing() -> None:
    harness = Harness()
    harness.submit(1, "abcdefghij")
    harness.runner.spoil(harness.plan())
    assert harness.scheduler.fail(1)
    assert harness.scheduler.table_size == 0
    harness.submit(2, "abcdefghij")
    harness.drain()
    assert harness.starts(2)[0] == 0


def test_a_step_that_is_not_reported_publishes_nothing_and_is_planned_again() -> None:
    harness = Harness()
    harness.submit(1, "abcdefghij")
    lost = harness.plan()
    harness.scheduler.commit(lost, [], harness.now)
    assert harness.scheduler.table_size == 0
    assert harness.step().spans == lost.spans


def test_a_failed_step_can_be_retried_one_by_one() -> None:
    harness = Harness()
    for seq, tokens in ((1, "abcdefgh1"), (2, "ABCDEFGH2")):
        harness.submit(seq, tokens)
    plan = harness.plan()
    harness.runner.spoil(plan)
    alone = plan.only(1)
    harness.compute(alone)
    harness.commit(alone)
    assert harness.scheduler.fail(2)
    assert harness.scheduler.table_size == 2  # the first one's two whole blocks
    harness.drain()
    assert harness.ended == [Ended(1, "length")]


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_prompt_of_whole_blocks_twice_recomputes_its_last_slot_in_a_block_of_its_own(num_blocks: int) -> None:
    harness = Harness()
    harness.submit(1, "abcdefghijkl"[: 4 * num_blocks], patches=9)
    harness.step()
    harness.submit(2, "abcdefghijkl"[: 4 * num_blocks], patches=9)
    first, second = sorted(harness.step().spans, key=lambda span: span.seq)
    assert (second.start, second.stop, second.emits) == (4 * (num_blocks - 1), 4 * num_blocks, True)
    assert first.blocks[: num_blocks - 1] == second.blocks[: num_blocks - 1]
    assert first.blocks[num_blocks - 1] != second.blocks[num_blocks - 1]
    harness.drain()


def test_a_finished_request_leaves_none_of_its_own_patches_in_the_table() -> None:
    harness = Harness()
    harness.submit(1, "abcde", patches=20)
    harness.drain()
    assert harness.scheduler.table_size == 1  # "abcd"


def test_a_waiting_request_that_is_cancelled_leaves_none_of_its_own_patches_either() -> None:
    harness, _ = preempted("abcd", patches=6)
    assert harness.scheduler.table_size > 1
    assert harness.scheduler.cancel(1)
    harness.drain()
    assert harness.scheduler.table_size == harness.scheduler.pool.table_size <= 1


# Preemption


def preempted(prompt: str, patches: int) -> tuple[Harness, int]:
    """Sequence 1 (batch) has made `patches` patches when sequence 2 takes its row. Its length then comes back as well."""
    harness = Harness(max_running=1)
    harness.submit(1, prompt, patches=40, priority="batch")
    for _ in range(patches):
        harness.step()
    harness.submit(2, "Z", patches=1)
    plan = harness.step()
    assert plan.parked == (1,)
    assert [span.seq for span in plan.spans] == [2]
    return harness, len(prompt) + patches


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9])
def test_preempt_and_resume_around_block_edges(length: int) -> None:
    """At block size -1, 0, +1 and two blocks -1, 0, +1: it goes on where it was, from blocks it finds again."""
    harness, present = preempted("ab", patches=length - 2)
    assert present == length
    (span,) = harness.step().spans
    assert (span.seq, span.stop, span.emits) == (1, length, True)
    assert span.start == (length - 1) // 4 * 4  # every whole block but that of the last slot
    harness.drain()
    assert harness.patches(1) == 40
    assert harness.ended == [Ended(2, "length"), Ended(1, "length")]


def test_a_preempted_request_whose_blocks_were_taken_computes_them_again() -> None:
    harness = Harness(num_blocks=4, max_running=1)
    harness.submit(1, "abcdef", patches=8, priority="batch")
    for _ in range(4):
        harness.step()
    harness.submit(2, "ABCDEFGHIJKLM", patches=4)
    harness.drain()
    assert harness.scheduler.preemptions == 1
    assert harness.patches(1) == 8
    assert harness.starts(1).count(0) == 2


def test_two_growers_on_three_blocks_both_end() -> None:
    harness = Harness(num_blocks=3, preempt_slack=0.1)
    harness.submit(1, "abcd", patches=9)
    harness.submit(2, "ABCD", patches=9)
    harness.drain()
    assert harness.scheduler.preemptions > 0
    assert sorted(ended.seq for ended in harness.ended) == [1, 2]
    assert harness.patches(1) == harness.patches(2) == 9


def test_many_growers_on_a_full_pool_all_end() -> None:
    harness = Harness(num_blocks=6, preempt_slack=0.1)
    for seq in range(12):
        harness.submit(seq, chr(65 + seq) * 5, patches=20, priority="batch" if seq % 3 else "live")
    harness.drain(max_steps=3000)
    assert len(harness.ended) == 12


# Admission


def test_a_prompt_that_can_never_fit_is_refused_and_a_small_one_runs() -> None:
    harness = Harness(num_blocks=2)
    with pytest.raises(Refused, match="num_blocks") as refused:
        harness.submit(1, "x" * 60)
    assert refused.value.limit == "num_blocks"
    harness.submit(2, "abc")
    harness.drain()
    assert harness.ended == [Ended(2, "length")]


def test_the_largest_request_that_fits_is_taken_and_ends() -> None:
    harness = Harness(num_blocks=2)
    harness.submit(1, "abcd", patches=5)  # slots: 4 and 4, the fifth patch's own is never computed
    with pytest.raises(Refused):
        harness.submit(2, "abcd", patches=6)
    harness.drain()
    assert harness.patches(1) == 5


def test_a_big_prompt_that_waits_for_room_does_not_hold_up_a_small_one() -> None:
    harness = Harness(num_blocks=8)
    harness.submit(1, "a" * 18, patches=8)
    harness.step()
    harness.submit(2, "b" * 25, patches=2)
    harness.submit(3, "c", patches=2)
    harness.step()
    assert harness.starts(2) == []
    assert harness.starts(3) != []
    harness.drain()
    assert len(harness.ended) == 3


def test_six_requests_with_two_rows_never_have_more_than_two_resident_and_all_end() -> None:
    harness = Harness(max_running=2)
    for seq in range(6):
        harness.submit(seq, "abcde" + str(seq), patches=30)
    while not harness.scheduler.is_idle:
        harness.step()
        assert harness.scheduler.num_running <= 2
    harness.drain()
    assert sorted(ended.seq for ended in harness.ended) == list(range(6))


def test_a_resident_with_its_turn_never_waits_for_a_second_patch_behind_newcomers() -> None:
    harness = Harness(max_running=4, slots_per_step=8)
    harness.submit(0, "a", patches=50)
    harness.step()
    for seq in range(1, 4):
        harness.submit(seq, chr(65 + seq) * 30, patches=5)
    for _ in range(20):
        assert 0 in {span.seq for span in harness.step().spans}


def test_duplicate_ids_are_refused_while_the_first_is_here() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=1)
    with pytest.raises(Refused) as refused:
        harness.submit(1, "xyz")
    assert refused.value.limit == "seq"
    harness.drain()
    harness.submit(1, "abc", patches=1)
    harness.drain()


@pytest.mark.parametrize(
    ("tokens", "more", "limit"),
    [("", {}, "keys"), ("a", {"patches": 0}, "max_patches"), ("a", {"done_patches": 2}, "max_patches")],
)
def test_what_makes_no_sense_is_refused_by_name(tokens: str, more: dict[str, int], limit: str) -> None:
    with pytest.raises(Refused) as refused:
        Harness().submit(1, tokens, **more)  # type: ignore[arg-type]
    assert refused.value.limit == limit


# Coming and going


def test_an_empty_plan_is_a_normal_value() -> None:
    harness = Harness()
    assert harness.step().spans == ()
    harness.submit(1, "abc")
    harness.plan()
    assert harness.scheduler.cancel(1)
    assert not harness.step()


@pytest.mark.parametrize("num_steps", range(6))
def test_cancel_in_any_state_gives_everything_back(num_steps: int) -> None:
    harness = Harness(slots_per_step=4)
    harness.submit(1, "abcdefgh", patches=3)
    harness.submit(2, "abcdefgh", patches=3)
    for _ in range(num_steps):
        harness.step()
    here = [seq for seq in (1, 2) if seq not in {ended.seq for ended in harness.ended}]
    assert [harness.scheduler.cancel(seq) for seq in here] == [True] * len(here)
    assert not harness.scheduler.cancel(1)
    assert harness.scheduler.is_idle
    harness.drain()


def test_an_outcome_of_a_cancelled_request_is_ignored_even_if_its_id_is_back() -> None:
    harness = Harness()
    harness.submit(1, "abcdefgh")
    plan = harness.plan()
    assert harness.scheduler.cancel(1)
    harness.submit(1, "ABCDEFGH")
    harness.commit(plan)
    assert harness.scheduler.table_size == 0
    assert harness.step().spans[0].start == 0


def test_a_stale_plan_and_a_stray_outcome_raise() -> None:
    harness = Harness()
    harness.submit(1, "abc")
    stale = harness.plan()
    plan = harness.plan()
    with pytest.raises(BrokenBooks):
        harness.scheduler.commit(stale, [], 0.0)
    with pytest.raises(BrokenBooks):
        harness.scheduler.commit(plan, [Outcome(9)], 0.0)


def test_committing_a_span_twice_counts_once() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=5)
    plan = harness.step()
    harness.commit(plan)
    assert harness.step().spans[0].start == 3


def test_stop_ends_with_its_reason_and_the_cap_with_length() -> None:
    harness = Harness()
    harness.submit(1, "abc", patches=9)
    harness.submit(2, "xyz", patches=2)
    harness.step()
    harness.step(1)
    assert sorted(harness.ended, key=lambda ended: ended.seq) == [Ended(1, "stop"), Ended(2, "length")]
    assert harness.scheduler.is_idle


def test_stop_of_a_span_that_made_no_patch_means_nothing() -> None:
    harness = Harness(slots_per_step=2)
    harness.submit(1, "abc", patches=1)
    harness.step(1)
    assert harness.ended == []
    harness.step()
    assert harness.ended == [Ended(1, "length")]


def test_a_resumed_stream_prefills_its_patches_and_makes_only_the_rest() -> None:
    harness = Harness()
    harness.submit(1, "abcde", patches=10, done_patches=6)
    (span,) = harness.step().spans
    assert (span.start, span.stop, span.emits) == (0, 11, True)
    harness.drain()
    assert harness.patches(1) == 4
    assert harness.scheduler.table_size == 1


# Order


def test_a_twin_waits_for_the_prefix_that_is_being_computed() -> None:
    harness = Harness(slots_per_step=8)
    for seq in range(4):
        harness.submit(seq, "abcdefghijkl" + str(seq))
    harness.drain()
    assert harness.starts(0)[0] == 0
    assert [harness.starts(seq)[0] for seq in (1, 2, 3)] == [12, 12, 12]


def test_a_twin_whose_owner_goes_away_computes_the_prefix_itself() -> None:
    harness = Harness(slots_per_step=4)
    harness.submit(1, "abcdefghijkl1")
    harness.submit(2, "abcdefghijkl2")
    harness.step()
    assert harness.scheduler.cancel(1)
    harness.drain()
    assert harness.starts(2)[0] == 4  # the one block that was published in time


@pytest.mark.parametrize(("target", "waits"), [(0.03, False), (0.05, True)])
def test_a_twin_that_would_miss_its_deadline_by_waiting_does_not_wait(target: float, waits: bool) -> None:
    harness = Harness(first_audio_target=target)
    harness.submit(0, "x", patches=1)
    harness.step()  # steps take 20 ms: alone it is one, after its twin two
    harness.submit(1, "abcdefghijkl1")
    harness.submit(2, "abcdefghijkl2")
    harness.step()
    assert harness.starts(2) == ([] if waits else [0])
    harness.drain()
    assert harness.starts(2)[0] == (12 if waits else 0)


def test_nobody_waits_for_a_less_urgent_twin() -> None:
    harness = Harness(slots_per_step=64)
    harness.submit(1, "abcdefghijkl1" * 9, priority="batch")
    harness.step()
    harness.submit(2, "abcdefghijkl1" * 9 + "2", patches=1)
    assert harness.step().spans[0].seq == 2
    harness.drain()


def test_one_prefill_leaves_every_running_stream_its_slot() -> None:
    harness = Harness(slots_per_step=8)
    for seq in range(3):
        harness.submit(seq, chr(65 + seq), patches=60)
    harness.step()
    harness.now += 0.3
    harness.submit(9, "z" * 40, patches=2)
    for _ in range(8):
        spans = {span.seq: span for span in harness.step().spans}
        assert spans.keys() == {0, 1, 2, 9}
        assert spans[9].stop - spans[9].start == 5


def test_the_stream_nearest_to_running_dry_goes_first() -> None:
    harness = Harness(slots_per_step=1)
    harness.submit(1, "a", patches=50)
    for _ in range(20):
        harness.step()
    harness.submit(2, "b", patches=50)
    order = [harness.step().spans[0].seq for _ in range(10)]
    assert order == [2] * 10  # the other has three seconds in hand


def test_a_listener_about_to_run_dry_comes_before_a_newcomer_who_is_late() -> None:
    harness = Harness(max_running=1, slots_per_step=4)
    harness.submit(1, "a", patches=9)
    harness.step()
    harness.submit(2, "b", patches=9)
    harness.now += 5.0
    assert [span.seq for span in harness.step().spans] == [1]
    while not harness.starts(2):
        harness.step()
    assert harness.scheduler.preemptions == 0  # nine patches are not seconds ahead


def test_a_resumed_stream_comes_before_newcomers() -> None:
    harness = Harness(max_running=1)
    harness.submit(1, "a", patches=9)
    harness.submit(2, "b", patches=9, done_patches=3)
    assert [span.seq for span in harness.step().spans] == [2]
    harness.drain()


def test_newcomers_do_not_wait_behind_a_heap_of_batch_work_that_is_due() -> None:
    harness = Harness(max_running=2, batch_horizon=1.0)
    for seq in range(100):
        harness.submit(seq, chr(65 + seq), patches=60, priority="batch")
    harness.step()
    harness.now += 100.0
    harness.submit(200, "x", patches=5)
    harness.step()
    assert harness.starts(200) != []
    harness.step()
    assert harness.patches(0) == 3  # the eldest goes on
    assert all(harness.scheduler.cancel(seq) for seq in range(100))
    harness.drain()


def test_batch_work_ages_and_does_not_starve() -> None:
    harness = Harness(max_running=1, slots_per_step=4, batch_horizon=1.0)
    harness.submit(0, "b", patches=3, priority="batch")
    for seq in range(1, 200):
        harness.submit(seq, "a", patches=2)
        harness.step()
        if Ended(0, "length") in harness.ended:
            break
    assert harness.now < 1.5
    harness.drain()


def test_a_late_big_request_is_not_starved_by_small_ones() -> None:
    harness = Harness(num_blocks=8, batch_horizon=1.0)
    for seq in range(1, 5):
        harness.submit(seq, str(seq), patches=4)
    harness.submit(0, "b" * 25, patches=2, priority="batch")
    for seq in range(5, 400):
        harness.submit(seq, chr(60 + seq % 50), patches=6)
        harness.step()
        if Ended(0, "length") in harness.ended:
            break
    assert Ended(0, "length") in harness.ended
    harness.drain(max_steps=5000)


# Tenants


def test_a_tenant_does_not_crowd_out_another() -> None:
    harness = Harness(max_running=4, tenant_weights={})
    for seq in range(20):
        harness.submit(seq, chr(65 + seq), patches=20, tenant="many")
    for _ in range(5):
        harness.step()
    for seq in (50, 51, 52):
        harness.submit(seq, str(seq), patches=20, tenant="few")
    for _ in range(6):  # until the others' listeners have something in hand
        harness.step()
    assert harness.starts(50) != []
    assert harness.starts(51) != []
    assert harness.starts(52) == []  # two of four rows is the share of each
    assert harness.scheduler.preemptions == 2
    harness.drain()


def test_a_tenant_alone_has_every_row() -> None:
    harness = Harness(max_running=4, tenant_weights={"one": 1.0, "two": 3.0})
    for seq in range(8):
        harness.submit(seq, chr(65 + seq), patches=5, tenant="one")
    harness.step()
    assert harness.scheduler.num_running == 4
    harness.drain()


def test_weights_set_the_shares() -> None:
    harness = Harness(max_running=4, tenant_weights={"two": 3.0})
    for seq in range(8):
        harness.submit(seq, chr(65 + seq), patches=5, tenant="one" if seq < 4 else "two")
    plan = harness.step()
    assert sorted(span.seq for span in plan.spans) == [0, 4, 5, 6]
    harness.drain()


# Adapters


def test_no_more_adapters_run_at_once_than_there_are_slots_and_all_end() -> None:
    harness = Harness(max_adapters=2)
    for seq in range(8):
        harness.submit(seq, chr(65 + seq), patches=5, adapter=seq % 4)
    while not harness.scheduler.is_idle:
        plan = harness.step()
        assert len({span.adapter for span in plan.spans}) <= 2
    assert [load.load for plan in harness.plans for load in plan.loads] == [0, 1, 2, 3]
    assert len(harness.ended) == 8


def test_adapters_are_refused_where_there_is_no_slot() -> None:
    with pytest.raises(Refused) as refused:
        Harness(max_adapters=0).submit(1, "a", adapter=3)
    assert refused.value.limit == "max_adapters"


def test_a_held_resident_does_not_keep_an_adapter_from_others() -> None:
    harness = Harness(max_adapters=1)
    harness.submit(1, "a", patches=5, adapter=1)
    harness.step()
    harness.scheduler.hold(1, True)
    harness.submit(2, "b", patches=2, adapter=2)
    assert [span.seq for span in harness.step().spans] == [2]
    harness.scheduler.hold(1, False)
    harness.drain()
    assert harness.patches(1) == 5
