"""The loop with a device that it runs ahead of: the next step is launched before the one before it is known."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.engine.fake_runner import RAISES, FakeFlight, FakeRunner
from tests.engine.in_process import Bench

from evervox.engine import messages
from evervox.engine.pipeline import Lost

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Benches:
    """Makes loops, and closes them."""

    def __init__(self, checkpoint: Path, folder: Path) -> None:
        self.checkpoint, self.folder, self.made = checkpoint, folder, list[Bench]()

    def make(self, ahead: int = 1, fake: dict[str, float] | None = None, **limits: Any) -> Bench:
        folder = self.folder / str(len(self.made))
        folder.mkdir()
        self.made.append(Bench(self.checkpoint, folder, {"ahead": ahead, **(fake or {})}, **limits))
        return self.made[-1]


@pytest.fixture
def benches(checkpoint: Path, tmp_path: Path) -> Iterator[Benches]:
    benches = Benches(checkpoint, tmp_path)
    yield benches
    for bench in benches.made:
        bench.close()


def samples(bench: Bench, seq: int) -> list[float]:
    chunks = bench.chunks(seq)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    return [float(np.frombuffer(chunk.samples.data, "<f4")[0]) for chunk in chunks]


def test_a_step_is_launched_before_the_one_before_it_is_taken(benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    launch, result = FakeRunner.launch, FakeFlight.result
    monkeypatch.setattr(FakeRunner, "launch", lambda self, plan: (order.append(f"launch {plan.step}"), launch(self, plan))[1])
    monkeypatch.setattr(FakeFlight, "result", lambda self: (order.append(f"take {self.plan.step}"), result(self))[1])
    bench = benches.make()
    bench.submit(1, patches=3)
    bench.tick(6)
    assert order == ["launch 1", "launch 2", "take 1", "launch 3", "take 2", "take 3"]
    assert bench.chunks(1)[-1].finish is not None


@pytest.mark.parametrize("seed", range(20))
def test_streams_are_as_without_it_whatever_comes_and_goes(benches: Benches, seed: int) -> None:
    """Random requests, readers, cancels and scarcity: every chunk is the same, and no reader gets more than it has room for."""

    def play(ahead: int) -> tuple[Bench, set[int]]:
        rng = random.Random(seed)
        limits = {"max_running": rng.randint(2, 6), "slots_per_step": rng.randint(3, 20), "num_blocks": rng.randint(6, 12)}
        bench, cancelled, room = benches.make(ahead, block_size=4, preempt_slack=0.001, **limits), set[int](), dict[int, int]()
        for seq in range(25):
            room[seq] = rng.choice([2, 10_000])
            bench.submit(seq, rng.randint(1, 12), credit=room[seq], stops=rng.random() < 0.5)
            for _ in range(rng.randint(0, 4)):
                bench.tick()
                assert all(len(bench.chunks(other)) <= most for other, most in room.items())
            if rng.random() < 0.2:
                cancelled.add(rng.randrange(seq + 1))
                bench.port.incoming.append(messages.Cancel(max(cancelled)))
        for seq in range(25):
            bench.port.incoming.append(messages.Credit(seq, 1000))
        for _ in range(600):
            bench.tick()
        return bench, cancelled

    (one, cancelled), (other, _) = play(1), play(0)
    assert one.scheduler.is_idle
    assert not one.runner.states
    assert not one.runner.flights
    for seq in range(25):
        mine, theirs = samples(one, seq), samples(other, seq)
        length = min(len(mine), len(theirs))
        assert mine[:length] == theirs[:length]
        assert len(mine) == len(theirs) or seq in cancelled


def test_what_is_made_after_the_end_is_nobodys(benches: Benches) -> None:
    bench = benches.make()
    bench.submit(1, patches=4, stops=True)
    bench.tick(12)
    assert len(bench.chunks(1)) == 4
    assert bench.chunks(1)[-1].finish.reason == "stop"
    assert bench.loop._live == {}


def test_a_failing_sequence_fails_alone(benches: Benches) -> None:
    bench = benches.make()
    for seq in range(4):
        bench.submit(seq, patches=10, credit=10, cfg=RAISES if seq == 2 else 2.0)
    bench.tick(25)
    assert [len(bench.chunks(seq)) for seq in range(4)] == [10, 10, 3, 10]
    failed = [message for message in bench.port.outgoing if isinstance(message, messages.Failed)]
    assert failed == [messages.Failed(2, "EngineFailure", "ValueError: the fake cannot do this one", None)]
    assert bench.runner.states == {}


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_step_that_fails_once_costs_nobody_a_patch(benches: Benches, at: int) -> None:
    bench, other = benches.make(fake={"fail_at": at}), benches.make(0)
    for one in (bench, other):
        for seq in range(3):
            one.submit(seq, patches=8, credit=8)
        one.tick(20)
    assert [samples(bench, seq) for seq in range(3)] == [samples(other, seq) for seq in range(3)]
    assert all(len(samples(bench, seq)) == 8 for seq in range(3))


def test_a_launch_that_fails_lets_the_step_before_it_land(benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, calls = FakeRunner.launch, iter(range(1000))

    def fail_once(self: FakeRunner, plan: Any) -> FakeFlight:
        if next(calls) == 4:
            raise OSError("no room for the launch")
        return launch(self, plan)

    monkeypatch.setattr(FakeRunner, "launch", fail_once)
    bench = benches.make()
    bench.submit(1, patches=4, stops=True)  # ends with the step whose follower fails
    bench.submit(2, patches=7)
    bench.tick(15)
    assert [len(bench.chunks(seq)) for seq in (1, 2)] == [4, 7]


def test_a_device_that_computes_nothing_any_more_ends_the_worker(benches: Benches) -> None:
    bench = benches.make(fake={"broken_from": 4})
    for seq in range(3):
        bench.submit(seq, patches=10)
    with pytest.raises(Lost):
        bench.tick(10)
    assert bench.blackbox.read() == {0, 1, 2}


def test_who_is_in_either_step_is_to_blame(benches: Benches) -> None:
    bench = benches.make()
    bench.submit(1, patches=9)
    bench.tick()
    bench.submit(2, patches=9)
    bench.tick()
    assert bench.blackbox.read() == {1, 2}
    bench.tick(20)
    assert bench.blackbox.read() == set()
