"""The worker's loop, tick by tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.fake_runner import RAISES
from tests.engine.in_process import Bench
from tests.engine.test_growth import containers

from evervox.engine import messages
from evervox.engine.pipeline import Lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MakeBench = "Callable[..., Bench]"


@pytest.fixture
def make_bench(checkpoint: Path, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**options: Any) -> Bench:
        benches.append(Bench(checkpoint, tmp_path, **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def test_chunks_are_numbered_and_the_last_says_how_it_ended(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.submit(1, patches=5)
    bench.tick(10)
    chunks = bench.chunks(1)
    assert [chunk.index for chunk in chunks] == [0, 1, 2, 3, 4]
    assert [chunk.finish is not None for chunk in chunks] == [False] * 4 + [True]
    assert bench.scheduler.is_idle
    assert bench.runner.states == {}


def test_a_slow_reader_holds_its_own_stream_and_costs_the_others_no_step(make_bench: Callable[..., Bench]) -> None:
    def steps_for_eight(with_slow: bool) -> int:
        bench = make_bench(slots_per_step=9)
        if with_slow:
            bench.submit(9, patches=300, credit=4)
        for seq in range(8):
            bench.submit(seq, patches=100)
        ticks = 0
        while not all(len(bench.chunks(seq)) == 100 for seq in range(8)):
            bench.tick()
            ticks += 1
            if with_slow and ticks % 20 == 0:
                bench.port.incoming.append(messages.Credit(9, 1))
        if with_slow:
            assert len(bench.chunks(9)) == 4 + ticks // 20
        return ticks

    assert steps_for_eight(True) <= 1.05 * steps_for_eight(False)


def test_a_reader_without_credit_starts_when_it_has_some(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.submit(1, patches=3, credit=0)
    bench.tick(5)
    assert bench.chunks(1) == []
    bench.port.incoming.append(messages.Credit(1, 2))
    bench.tick(5)
    assert len(bench.chunks(1)) == 2
    bench.port.incoming.append(messages.Credit(1, 2))
    bench.tick(5)
    assert len(bench.chunks(1)) == 3


def test_an_encode_stops_no_stream(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.runner.may_encode.clear()
    bench.submit(1, patches=50)
    bench.tick()
    bench.submit(2, patches=2, clip=7)
    bench.tick(10)
    assert len(bench.chunks(1)) == 11
    assert bench.chunks(2) == []
    assert bench.intake.encode_seconds > 0
    bench.runner.may_encode.set()
    bench.until_encoded(1)
    bench.tick(3)
    assert len(bench.chunks(2)) == 2
    bench.submit(3, patches=2, clip=7)  # the same clip again
    bench.tick()
    bench.until_encoded(1)
    assert bench.intake.cache.hits == 1


def test_a_sequence_cancelled_while_its_clip_is_encoded_never_runs(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.runner.may_encode.clear()
    bench.submit(1, patches=5, clip=3)
    bench.tick()
    bench.port.incoming.append(messages.Cancel(1))
    bench.tick()
    assert messages.Gone(1) in bench.port.outgoing
    bench.runner.may_encode.set()
    bench.until_encoded(1)
    bench.tick(3)
    assert bench.chunks(1) == []
    assert bench.scheduler.is_idle


def test_a_failing_sequence_fails_alone(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    for seq in range(4):
        bench.submit(seq, patches=10, cfg=RAISES if seq == 2 else 2.0)
    bench.tick(15)
    assert [len(bench.chunks(seq)) for seq in range(4)] == [10, 10, 3, 10]
    failed = [message for message in bench.port.outgoing if isinstance(message, messages.Failed)]
    assert failed == [messages.Failed(2, "EngineFailure", "ValueError: the fake cannot do this one", None)]
    assert bench.runner.states == {}


def test_a_device_that_computes_nothing_any_more_ends_the_worker(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(fake={"broken_from": 4})
    for seq in range(3):
        bench.submit(seq, patches=10)
    bench.tick(3)
    with pytest.raises(Lost):
        bench.tick()
    assert bench.blackbox.read() == {0, 1, 2}


def test_the_books_are_proven_when_the_last_sequence_has_gone(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    bench.submit(1, patches=3)
    bench.tick(2)
    bench.scheduler.pool.acquire((), 1)  # a block that nobody will give back
    with pytest.raises(Lost, match="not so"):
        bench.tick(5)


def test_whatever_grows_in_the_worker_is_in_the_ledger(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(fake={"encode": 0.0})
    for seq in range(40):
        bench.submit(seq, patches=30, clip=seq if seq % 2 else None)
    bench.tick()
    bench.until_encoded(20)
    bench.tick(5)
    grown = [(names, value) for names, value in containers(bench.loop) if len(value) >= 16]
    assert {"Loop._live"} <= set().union(*(names for names, _ in grown))
    unknown = [names for names, value in grown if not bench.ledger.holds(value) and not names & COUNTED]
    assert unknown == []


COUNTED = {
    # Their owners count them: `sequences running`, `sequences waiting`, `prefix table`, `blocks free`.
    "Scheduler._sequences",
    "Scheduler._running",
    "Scheduler._computing",
    "Lanes._waiting",
    "BlockPool._refs",
    "BlockPool._keys",
    "BlockPool._table",
    "KeyChain.digests",
    "KeyChain._tail",
    # `encoded clips` counts its bytes.
    "ClipCache._clips",
    # The fake's own.
    "FakeRunner.states",
    "_State.patches",
}
