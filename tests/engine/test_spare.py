"""A second process that has its libraries loaded takes over when the worker dies."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from tests.engine.helpers import LONG, Assassin, listen

from evervox.engine import supervisor
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from tests.engine.conftest import StartFake

    from evervox.engine.client import Engine

REQUEST = SpeechRequest(text=LONG, seed=3, min_patches=400)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SPARE_SECONDS", 0.1)


async def spare_of(engine: Engine, *, other_than: int | None = None) -> int:
    while (spare := engine._supervisor._spare) is None or spare.pid == other_than or spare.exit_reason() is not None:
        await asyncio.sleep(0.01)
    return spare.pid


def test_it_takes_over_and_another_takes_its_place(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake() as engine:
            expected = await listen(engine.speak(REQUEST))
        async with start_fake({"step": 0.02}, spare=True) as engine:
            reader, assassin = asyncio.create_task(listen(engine.speak(REQUEST))), Assassin(engine)
            for _ in range(2):
                spare = await spare_of(engine, other_than=engine.stats().pid)
                await assassin.progress()
                await assassin.strike()
                await assassin.progress()
                assert engine.stats().pid == spare
            np.testing.assert_array_equal((await reader).samples, expected.samples)
            assert engine.stats().restarts == 2
            lines = {line.name: line for line in engine.stats().ledger}
            assert lines["worker processes"].size <= lines["worker processes"].limit == 3

    asyncio.run(main())


def test_one_that_dies_is_replaced_and_troubles_nobody(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake(spare=True) as engine:
            first = await spare_of(engine)
            os.kill(first, signal.SIGKILL)
            assert await spare_of(engine, other_than=first) != first
            assert (await listen(engine.speak(SpeechRequest(text="Still here.")))).finish.reason == "stop"
            assert engine.stats().restarts == 0

    asyncio.run(main())


def test_a_dead_one_is_not_waited_for(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.02}, spare=True) as engine:
            reader = asyncio.create_task(listen(engine.speak(REQUEST)))
            spare = await spare_of(engine)
            assassin = Assassin(engine)
            await assassin.progress()
            os.kill(spare, signal.SIGKILL)
            await assassin.strike()
            await assassin.progress()
            assert engine.stats().pid != spare
            assert (await reader).num_chunks > 150

    asyncio.run(main())


def test_closing_ends_it_and_without_the_setting_there_is_none(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake(spare=True) as engine:
            spare = await spare_of(engine)
        assert not psutil.pid_exists(spare)
        async with start_fake() as engine:
            await asyncio.sleep(0.5)
            assert engine._supervisor._spare is None

    asyncio.run(main())
