"""Nothing grows: thousands of requests that end in every way leave both processes as they were."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from tests.engine.helpers import listen, settled

from evervox.errors import EvervoxError
from evervox.request import RawAudio, SpeechRequest

if TYPE_CHECKING:
    from tests.engine.conftest import StartFake

    from evervox.engine.client import Engine

CLIPS = [RawAudio(np.full(4000, level / 10, np.float32), 16000) for level in range(8)]


async def one(engine: Engine, number: int) -> None:
    """A request that ends in one of the ways there are: at some chunk, before any, by timeout, by error, or by itself."""
    draw = random.Random(number)
    request = SpeechRequest(
        text=f"Request number {number}.",
        seed=number,
        min_patches=draw.choice([2, 40, 400]),
        reference=draw.choice([None, None, draw.choice(CLIPS)]),
        timeout=draw.choice([None, None, 0.05]),
        cfg=draw.choice([2.0, 2.0, 2.0, 9.25]),
    )
    limit = draw.choice([0, 1, 3, 10_000])
    stream = engine.speak(request)
    if draw.random() < 0.2:
        return  # dropped without a look
    try:
        count = 0
        async for _ in stream:
            count += 1
            if count > limit:
                break
    except EvervoxError:
        return


async def many(engine: Engine, first: int, count: int, at_once: int = 30) -> None:
    numbers = iter(range(first, first + count))

    async def reader() -> None:
        for number in numbers:
            await one(engine, number)
            await asyncio.sleep(0)

    await asyncio.gather(*(reader() for _ in range(at_once)))
    await settled(engine)
    await asyncio.sleep(1.2)  # for the worker's next report
    gc.collect()


def sizes(engine: Engine) -> dict[str, int]:
    """The ledger, without what stays by design: the two caches and the counter of restarts."""
    kept = ("encoded clips", "prefix table")
    return {line.name: line.size for line in engine.stats().ledger if line.name not in kept}


def memory(engine: Engine) -> np.ndarray:
    """Resident bytes of the worker and of this process."""
    pid = engine.stats().pid
    return np.array([psutil.Process(p).memory_info().rss for p in (pid, os.getpid())], np.float64)


def holdings() -> tuple[int, int, int, set[str]]:
    process = psutil.Process()
    return threading.active_count(), process.num_fds(), len(process.children()), {t.get_name() for t in asyncio.all_tasks()}


@pytest.mark.parametrize(
    ("count", "rounds", "slope"),
    [(250, 3, 50_000), pytest.param(1000, 10, 500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_requests_cancelled_at_random_points_leave_nothing(start_fake: StartFake, count: int, rounds: int, slope: float) -> None:
    """`slope`: how many bytes a request may seem to cost. What a few hundred show is mostly warming up."""

    async def main() -> None:
        async with start_fake(max_running=8, max_waiting=100, clip_cache_bytes=1 << 20) as engine:
            await many(engine, 0, count)
            before, held = sizes(engine), holdings()
            used = [memory(engine)]
            for number in range(1, rounds):
                await many(engine, number * count, count)
                used.append(memory(engine))
            assert sizes(engine) == before
            assert holdings() == held
            for line in engine.stats().ledger:
                assert line.limit is None or line.size <= line.limit, line
            assert engine.stats().restarts == 0
            cost = np.polyfit(np.arange(rounds) * count, np.array(used), 1)[0]
            resident = (np.array(used) / 2**20).round(1).tolist()
            print(f"bytes per request, worker and client: {cost.round(1)}; resident MiB: {resident}")
            assert (cost < slope).all()

    asyncio.run(main())


def containers(root: object) -> list[tuple[set[str], Any]]:
    """Every list, dict, set and deque that an object of the package holds, and under which names."""
    found: dict[int, tuple[set[str], Any]] = {}
    seen: set[int] = set()
    pending = [root]
    while pending:
        owner = pending.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name, value in _fields(owner):
            if type(value).__module__.startswith("evervox."):
                pending.append(value)
            elif isinstance(value, (list, dict, set)) or type(value).__name__ in ("deque", "OrderedDict"):
                found.setdefault(id(value), (set(), value))[0].add(f"{type(owner).__name__}.{name}")
                pending.extend(v for v in (value.values() if isinstance(value, dict) else value))
    return list(found.values())


def _fields(owner: object) -> list[tuple[str, Any]]:
    if not type(owner).__module__.startswith("evervox."):
        return []
    names = [*getattr(owner, "__dict__", {}), *(n for c in type(owner).__mro__ for n in getattr(c, "__slots__", ()))]
    return [(name, getattr(owner, name)) for name in names if name != "__dict__" and hasattr(owner, name)]


def test_whatever_grows_in_the_client_is_in_the_ledger(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.01}, max_running=4, max_waiting=40) as engine:
            readers = [asyncio.create_task(listen(engine.speak(SpeechRequest(text=f"{n}.", min_patches=60)))) for n in range(30)]
            await asyncio.sleep(0.3)
            grown = [(names, value) for names, value in containers(engine) if len(value) >= 20]
            assert {"Engine._open", "Supervisor._jobs"} <= set().union(*(names for names, _ in grown))
            unknown = [
                names for names, value in grown if not engine.ledger.holds(value) and not names & (CONSTANT | OF_A_REQUEST)
            ]
            assert unknown == []
            await asyncio.gather(*readers)

    asyncio.run(main())


CONSTANT = {"TextTokenizer._splits", "Launch.settings"}  # made at the start and never written again
OF_A_REQUEST = {"Job.patches", "Job.chunks"}  # go with it; `resume bytes` counts the one, `stream_buffer` bounds the other


def test_two_hundred_submit_while_the_default_executor_is_blocked(start_fake: StartFake) -> None:
    async def main() -> None:
        from concurrent.futures import ThreadPoolExecutor

        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        release = threading.Event()
        blocked = loop.run_in_executor(None, release.wait)
        async with start_fake(max_running=16, max_waiting=200) as engine:
            requests = [SpeechRequest(text=f"Number {n}.", seed=n, reference=CLIPS[n % 8] if n % 2 else None) for n in range(200)]
            heard = await asyncio.gather(*(listen(engine.speak(request)) for request in requests))
            assert [one.finish.seed for one in heard] == list(range(200))
            assert not blocked.done()
            release.set()
            await blocked

    asyncio.run(main())
