"""Workers that die, hang or never start, under open streams."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from tests.engine.fake_runner import HANGS, KILLS, RAISES
from tests.engine.helpers import LONG, Assassin, listen, settled

from evervox import errors
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import StartFake


PATIENCE = 2.5  # a busy machine takes a second to come back to a process
EIGHT = [SpeechRequest(text=LONG, seed=seed, min_patches=150) for seed in range(8)]


_twins: list[np.ndarray] = []


async def twins(start_fake: StartFake) -> list[np.ndarray]:
    """What the eight say when nothing happens."""
    if not _twins:
        async with start_fake() as engine:
            heard = await asyncio.gather(*(listen(engine.speak(request)) for request in EIGHT))
            _twins.extend(one.samples for one in heard)
    return _twins


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("num_kills", [4, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_streams_survive_kills_at_random_moments(start_fake: StartFake, num_kills: int, ahead: int) -> None:
    draw = random.Random(num_kills)

    async def main() -> None:
        expected = await twins(start_fake)
        async with start_fake({"step": 0.01 * num_kills, "ahead": ahead}, restart_backoff=0.05) as engine:
            readers = [asyncio.create_task(listen(engine.speak(request))) for request in EIGHT]
            assassin = Assassin(engine)
            while len(assassin.made()) < len(EIGHT):
                await asyncio.sleep(0.01)
            for _ in range(num_kills // 2):
                await assassin.strike()  # as soon as the worker serves, which is in the middle of resuming
                await assassin.progress()  # a stream that gets nowhere between two deaths would be taken for their cause
                await asyncio.sleep(draw.random() * 0.5)
                await assassin.strike()
                await assassin.progress()
            assert not any(reader.done() for reader in readers), [reader.result().finish for reader in readers]
            for samples, reader in zip(expected, readers, strict=True):
                np.testing.assert_array_equal((await reader).samples, samples)
            assert engine.stats().restarts == num_kills
            await settled(engine)

    asyncio.run(main())


def test_a_stopped_worker_is_replaced_and_its_streams_go_on(start_fake: StartFake) -> None:
    async def main() -> None:
        expected = await twins(start_fake)
        async with start_fake({"step": 0.005}, step_timeout=PATIENCE) as engine:
            readers = [asyncio.create_task(listen(engine.speak(request))) for request in EIGHT]
            await asyncio.sleep(0.3)
            await Assassin(engine).strike(signal.SIGSTOP)
            for samples, reader in zip(expected, readers, strict=True):
                np.testing.assert_array_equal((await reader).samples, samples)
            assert engine.stats().restarts == 1

    asyncio.run(main())


def test_a_stopped_worker_is_noticed_without_any_request(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake(step_timeout=PATIENCE) as engine:
            await Assassin(engine).strike(signal.SIGSTOP)
            await asyncio.sleep(PATIENCE + 0.5)
            heard = await listen(engine.speak(SpeechRequest(text="Still here.")))
            assert heard.finish.reason == "stop"
            assert engine.stats().restarts == 1

    asyncio.run(main())


def test_a_blocked_client_is_not_a_stuck_worker(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.005}, step_timeout=PATIENCE) as engine:
            reader = asyncio.create_task(listen(engine.speak(EIGHT[0])))
            await asyncio.sleep(0.1)
            time.sleep(PATIENCE + 1)
            await reader
            assert engine.stats().restarts == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fake", "error", "message"),
    [
        ({"die_at_start": 1}, errors.EngineFailure, "SIGKILL while it loaded the model"),
        ({"raise_at_start": 1}, errors.EngineFailure, "MemoryError: the fake has no memory"),
        ({"refuse": 1}, errors.CheckpointError, "the fake refuses this folder"),
        ({"load": 60}, errors.EngineFailure, "start_timeout"),
    ],
)
def test_a_worker_that_does_not_start_says_why(
    start_fake: StartFake, fake: dict[str, float], error: type[Exception], message: str
) -> None:
    async def main() -> None:
        began = time.monotonic()
        async with start_fake():
            healthy = time.monotonic() - began
        engine = start_fake(fake, start_timeout=4 if "load" in fake else 60)
        began = time.monotonic()
        with pytest.raises(error, match=message):
            await engine.open()
        assert time.monotonic() - began < 8 + healthy  # ten seconds on a machine that is not busy
        with pytest.raises(errors.Unavailable):
            engine.speak(SpeechRequest(text="Nobody."))

    asyncio.run(main())


def poisoned(cfg: float) -> SpeechRequest:
    return SpeechRequest(text="A poisoned one.", cfg=cfg, min_patches=20)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_request_that_fails_its_steps_ends_alone(start_fake: StartFake, ahead: int) -> None:
    async def main() -> None:
        expected = await twins(start_fake)
        async with start_fake({"ahead": ahead}) as engine:
            readers = [asyncio.create_task(listen(engine.speak(request))) for request in EIGHT]
            with pytest.raises(errors.EngineFailure, match="ValueError: the fake cannot do this one"):
                await listen(engine.speak(poisoned(RAISES)))
            for samples, reader in zip(expected, readers, strict=True):
                np.testing.assert_array_equal((await reader).samples, samples)
            assert engine.stats().restarts == 0
            await settled(engine)

    asyncio.run(main())


def test_a_step_that_fails_once_costs_nobody_anything(start_fake: StartFake) -> None:
    async def main() -> None:
        expected = await twins(start_fake)
        async with start_fake({"fail_at": 30}) as engine:
            heard = await asyncio.gather(*(listen(engine.speak(request)) for request in EIGHT))
            for samples, other in zip(expected, heard, strict=True):
                np.testing.assert_array_equal(other.samples, samples)

    asyncio.run(main())


@pytest.mark.parametrize(("cfg", "ahead"), [(KILLS, 0), (KILLS, 1), (HANGS, 0)])
def test_a_request_that_takes_the_worker_down_twice_fails_and_the_others_go_on(
    start_fake: StartFake, cfg: float, ahead: int
) -> None:
    async def main() -> None:
        expected = await twins(start_fake)
        async with start_fake({"step": 0.005, "ahead": ahead}, step_timeout=PATIENCE) as engine:
            readers = [asyncio.create_task(listen(engine.speak(request))) for request in EIGHT]
            with pytest.raises(errors.EngineFailure, match=r"died \d times"):
                await listen(engine.speak(poisoned(cfg)))
            for samples, reader in zip(expected, readers, strict=True):
                np.testing.assert_array_equal((await reader).samples, samples)
            assert engine.stats().restarts <= 5  # a patch that died with the worker is progress, and delays the verdict
            await settled(engine)

    asyncio.run(main())


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_lost_device_gets_a_new_worker(start_fake: StartFake, ahead: int) -> None:
    async def main() -> None:
        expected = await twins(start_fake)
        async with start_fake({"broken_from": 100, "ahead": ahead}) as engine:
            heard = await asyncio.gather(*(listen(engine.speak(request)) for request in EIGHT))
            for samples, other in zip(expected, heard, strict=True):
                np.testing.assert_array_equal(other.samples, samples)
            assert engine.stats().restarts >= 1

    asyncio.run(main())


def test_restarts_that_bring_nothing_end_in_unavailable(start_fake: StartFake, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.01}, max_restarts=2, restart_backoff=0.05) as engine:
            reader = asyncio.create_task(listen(engine.speak(EIGHT[0])))
            await asyncio.sleep(0.1)
            monkeypatch.setenv("FAKE_RUNNER", '{"die_at_start": 1}')
            await Assassin(engine).strike()
            with pytest.raises(errors.Unavailable, match="max_restarts: 2 restarts in a row"):
                await reader
            assert "max_restarts" in str(engine.ready().reason)
            with pytest.raises(errors.Unavailable, match="max_restarts"):
                engine.speak(EIGHT[0])

    asyncio.run(main())


ORPHAN = """
import asyncio, os, sys
from evervox.engine.client import Engine
async def main():
    engine = Engine.start(sys.argv[1], runner="tests.engine.fake_runner:create")
    await engine.open()
    print(engine.stats().pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_worker_does_not_outlive_its_parent(checkpoint: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", ORPHAN, str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(5)
