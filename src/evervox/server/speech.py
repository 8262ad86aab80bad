"""One speech request over HTTP, from its body to its last byte, with a single owner for all that it holds."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from evervox.audio.encoders import make_encoder
from evervox.errors import DeadlineExceeded, EngineFailure, EvervoxError
from evervox.server.delivery import EventDelivery, FileDelivery
from evervox.server.encoding import ThreadedEncoder
from evervox.server.metrics import Meter
from evervox.server.orders import on_the_wire
from evervox.server.problems import problem_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from evervox.request import Finish
    from evervox.server.context import State
    from evervox.server.contract import SpeechStream
    from evervox.server.delivery import Delivery
    from evervox.server.orders import Order

LAST_WORD = 1.0
PAUSE = 0.1
"""Before the cut: a browser throws away what it has not read by then, the error event too."""
log = logging.getLogger("evervox.server")


class SpeechResponse(Response):
    """Answers `POST /v1/audio/speech`. Until the first audio is there an error is a status; after it, the connection is cut."""

    def __init__(self, request: Request, tenant: str, state: State) -> None:
        self._request, self._tenant, self._state = request, tenant, state
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._state.gate.enter():
            try:
                order = await self._order()
            except ClientDisconnect:
                return
            await Take(order, self._state, scope["evervox"]).run(receive, send)

    async def _order(self) -> Order:
        seconds = self._state.settings.request_timeout
        try:
            return await asyncio.wait_for(self._state.desk.take(self._request, self._tenant), seconds)
        except asyncio.TimeoutError:
            raise DeadlineExceeded(f"body: not complete after {seconds:g} seconds") from None


class Take:
    """One stream: the engine's, through an encoder, to the client. `run` returns or raises with everything let go of."""

    def __init__(self, order: Order, state: State, notes: dict[str, Any]) -> None:
        self._state, self._notes, self._order = state, notes, order
        rate = state.engine.info.sample_rate
        self._encoder = ThreadedEncoder(partial(make_encoder, order.fmt, rate, speed=order.speed), state.encoders)
        self._delivery: Delivery = EventDelivery() if order.is_sse else FileDelivery(order.fmt, rate)
        self._meter = Meter(state.metrics, order.fmt, order.speed, notes["started"])
        self._is_begun = False
        try:
            self._stream: SpeechStream = state.engine.speak(order.request)
        except EvervoxError as error:
            raise on_the_wire(error) from None

    async def run(self, receive: Receive, send: Send) -> None:
        """Until the stream ends, the client leaves, or time is up: whichever comes first."""
        outcome = "cancelled"
        try:
            outcome = await self._race(receive, send)
        except EvervoxError as error:
            outcome = error.code
            await self._fail(on_the_wire(error), send)
        except Exception as error:
            outcome = "internal"
            log.exception("a stream failed")
            await self._fail(error, send)
        finally:
            self._encoder.close()
            self._end(outcome)
            await self._stream.aclose()

    async def _race(self, receive: Receive, send: Send) -> str:
        work = asyncio.create_task(self._deliver(send), name="evervox stream")
        gone = asyncio.create_task(_disconnected(receive), name="evervox disconnect")
        try:
            done, _ = await asyncio.wait(
                {work, gone}, timeout=self._state.settings.request_timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if work in done:
                return work.result()
            if gone in done:
                return "disconnect"
            raise DeadlineExceeded(f"timeout: the request was not done after {self._state.settings.request_timeout:g} seconds")
        finally:
            await _end_tasks(work, gone)

    async def _deliver(self, send: Send) -> str:
        try:
            while True:
                chunk = await self._stream.__anext__()
                self._meter.chunk(time.perf_counter(), len(chunk.samples) / chunk.sample_rate)
                before = time.perf_counter()
                data = await self._encoder.push(chunk.samples, last=chunk.finish is not None)
                await self._send(self._delivery.audio(data), send)
                if chunk.finish is not None:
                    await self._finish(chunk.finish, send)
                    return chunk.finish.reason
                self._meter.hold(time.perf_counter() - before)
        except StopAsyncIteration:
            raise EngineFailure("the stream ended before its last chunk") from None
        except OSError:
            return "disconnect"

    async def _send(self, data: bytes, send: Send) -> None:
        if not self._is_begun:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers()})
            self._is_begun = True
        if data:
            self._state.metrics.sent.labels(self._order.fmt).inc(len(data))
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _finish(self, finish: Finish, send: Send) -> None:
        self._state.metrics.prompt_slots.inc(finish.prompt_slots)
        self._state.metrics.cached_slots.inc(finish.cached_slots)
        last = self._delivery.done(finish, self._meter.audio_seconds / self._order.speed)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _fail(self, error: Exception, send: Send) -> None:
        """Before the first byte the error goes on, to become a status. After it: say so where there is a place, and cut."""
        if not self._is_begun:
            raise error
        self._notes["error"] = str(error)
        if last := self._delivery.failed(problem_of(error)[1]):
            message = {"type": "http.response.body", "body": last, "more_body": True}
            with suppress(OSError, asyncio.TimeoutError):  # a client that reads nothing gets no last word
                await asyncio.wait_for(send(message), LAST_WORD)
                await asyncio.sleep(PAUSE)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = {
            "content-type": self._delivery.media_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            "x-audio-sample-rate": str(self._encoder.sample_rate),
            "x-audio-channels": "1",
            "x-seed": str(self._stream.seed),
        }
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    def _end(self, outcome: str) -> None:
        meter = self._meter
        if meter.rtf is not None:
            self._state.metrics.rtf.observe(meter.rtf)
        self._state.metrics.streams.labels(outcome).inc()
        self._notes["speech"] = {
            "format": self._order.fmt,
            "outcome": outcome,
            "seed": self._stream.seed,
            "audio_seconds": round(meter.audio_seconds, 3),
            "first_audio": meter.first_audio,
            "rtf": meter.rtf,
            "underruns": meter.underruns,
        }


async def _disconnected(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel and see them end; what they raise now is of no use any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
