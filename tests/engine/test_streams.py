"""Requests through a real worker process over the fake runner."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from tests.engine.helpers import LONG, drain, listen, settled

from evervox import errors
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from tests.engine.conftest import StartFake

    from evervox.engine.client import Engine


def test_one_request_from_text_to_the_last_chunk(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake() as engine:
            assert engine.ready()
            heard = await listen(engine.speak(SpeechRequest(text="Hello there.", seed=7)))
            again = await listen(engine.speak(SpeechRequest(text="Hello there.", seed=7)))
            other = await listen(engine.speak(SpeechRequest(text="Hello there.", seed=8)))
            assert heard.finish.seed == 7
            assert heard.finish.reason == "stop"
            assert len(heard.samples) == heard.finish.num_patches * engine.info.samples_per_patch
            np.testing.assert_array_equal(heard.samples, again.samples)
            assert not np.array_equal(heard.samples[:100], other.samples[:100])
            await settled(engine)

    asyncio.run(main())


def test_sixteen_at_once_are_the_sixteen_alone(start_fake: StartFake) -> None:
    requests = [SpeechRequest(text=f"Number {i}, please.", seed=i, min_patches=3 + i) for i in range(16)]

    async def main() -> None:
        async with start_fake(max_running=5, slots_per_step=8) as engine:
            together = await asyncio.gather(*(listen(engine.speak(request)) for request in requests))
            for request, heard in zip(requests, together, strict=True):
                alone = await listen(engine.speak(request))
                np.testing.assert_array_equal(heard.samples, alone.samples)

    asyncio.run(main())


@pytest.mark.parametrize("way", ["break", "aclose", "cancel", "drop", "with"])
def test_leaving_a_stream_cancels_it_at_once(start_fake: StartFake, way: str) -> None:
    async def leave(engine: Engine) -> None:
        stream = engine.speak(SpeechRequest(text=LONG, min_patches=400))
        assert (await anext(stream)).start == 0
        if way == "break":
            async for _ in stream:
                break
        elif way == "aclose":
            await stream.aclose()
        elif way == "cancel":
            reader = asyncio.create_task(drain(stream))
            await asyncio.sleep(0.05)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        elif way == "with":
            async with stream:
                pass
        else:
            del stream
            gc.collect()
        await asyncio.sleep(0)
        assert engine.stats().open_requests == 0

    async def main() -> None:
        async with start_fake({"step": 0.002}) as engine:
            await leave(engine)
            await settled(engine)

    asyncio.run(main())


def test_a_timeout_ends_the_request_with_its_error(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.01}) as engine:
            with pytest.raises(errors.DeadlineExceeded, match=r"0\.2 seconds"):
                await listen(engine.speak(SpeechRequest(text=LONG, min_patches=400, timeout=0.2)))
            await settled(engine)

    asyncio.run(main())


def test_too_many_requests_are_refused_with_a_time_to_come_back(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.01}, max_running=2, max_waiting=1) as engine:
            streams = [engine.speak(SpeechRequest(text=LONG, min_patches=400)) for _ in range(3)]
            with pytest.raises(errors.Overloaded, match="max_waiting 1") as caught:
                engine.speak(SpeechRequest(text="One more."))
            assert caught.value.retry_after >= 1
            await streams[0].aclose()
            await listen(engine.speak(SpeechRequest(text="Now there is room.")))

    asyncio.run(main())


BAD = [
    (SpeechRequest(text=" "), errors.BadRequest, "text"),
    (SpeechRequest(text="x" * 4097), errors.TooLarge, "text"),
    (SpeechRequest(text="a", timesteps=1), errors.BadRequest, "timesteps"),
    (SpeechRequest(text="a", timeout="soon"), errors.BadRequest, "timeout"),  # type: ignore[arg-type]
    (SpeechRequest(text="a", timeout=-1), errors.BadRequest, "timeout"),
    (SpeechRequest(text="a", max_seconds=float("nan")), errors.BadRequest, "max_seconds"),
    (SpeechRequest(text=7), errors.BadRequest, "text"),  # type: ignore[arg-type]
    (SpeechRequest(text="a", seed="x"), errors.BadRequest, "seed"),  # type: ignore[arg-type]
    (SpeechRequest(text="a", priority="now"), errors.BadRequest, "priority"),  # type: ignore[arg-type]
    (SpeechRequest(text="a", reference="/does/not/exist.wav"), errors.NotFound, "reference"),
    (SpeechRequest(text="a", adapter="nobody"), errors.Unsupported, "adapter"),
]


def test_bad_input_is_named(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake() as engine:
            for request, error, field in BAD:
                with pytest.raises(error) as caught:
                    await listen(engine.speak(request))
                assert caught.value.field == field
            await settled(engine)

    asyncio.run(main())


def test_draining_lets_the_open_ones_end_and_takes_no_more(start_fake: StartFake) -> None:
    async def main() -> None:
        async with start_fake({"step": 0.005}) as engine:
            reader = asyncio.create_task(listen(engine.speak(SpeechRequest(text="The last one.", min_patches=40))))
            await asyncio.sleep(0.05)
            drained = asyncio.create_task(engine.drain())
            await asyncio.sleep(0)
            assert engine.ready().reason == "the engine is draining"
            with pytest.raises(errors.Unavailable, match="draining"):
                engine.speak(SpeechRequest(text="Too late."))
            await drained
            assert (await reader).finish.num_patches >= 40

    asyncio.run(main())


def test_closing_the_engine_ends_open_streams_with_an_error(start_fake: StartFake) -> None:
    async def main() -> None:
        engine = start_fake({"step": 0.005})
        async with engine:
            reader = asyncio.create_task(listen(engine.speak(SpeechRequest(text=LONG, min_patches=400))))
            await asyncio.sleep(0.1)
        with pytest.raises(errors.Unavailable, match="closed"):
            await reader
        with pytest.raises(errors.Unavailable):
            engine.speak(SpeechRequest(text="Nobody is here."))

    asyncio.run(main())


def test_an_engine_that_is_closed_while_it_loads_leaves_no_worker(start_fake: StartFake) -> None:
    async def main() -> None:
        engine = start_fake({"load": 60})
        opening = asyncio.create_task(engine.open())
        while engine.stats().state != "starting" or not psutil.Process().children():
            await asyncio.sleep(0.01)
        assert engine.ready().reason == "the model is being loaded"
        with pytest.raises(errors.Unavailable, match="loaded"):
            engine.speak(SpeechRequest(text="Too early."))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await engine.close()
        assert psutil.Process().children() == []

    asyncio.run(main())
