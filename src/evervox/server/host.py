"""An engine, the app and a socket, from the banner to a graceful end."""

from __future__ import annotations

import asyncio
import importlib.metadata
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from evervox.engine.client import Engine
from evervox.errors import ConfigError
from evervox.server.app import create_app

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import FrameType

    from evervox.config import ServerSettings
    from evervox.server.context import State

LAST_SECONDS = 2
"""For connections that are still open when draining has ended."""
SPARE_CONNECTIONS = 64
SWITCH_SECONDS = 0.0005
LOOPBACK = ("127.", "localhost", "::1")


class DrainingServer(uvicorn.Server):
    """The first signal lets streams finish and turns new ones away; the second ends at once. Either way the exit code is 0."""

    def __init__(self, config: uvicorn.Config, state: State) -> None:
        super().__init__(config)
        self._state = state
        self._drain: asyncio.Task[None] | None = None
        limit = config.limit_concurrency
        state.ledger.register("connections", self.server_state.connections, limit=limit, owner="server")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called between two bytecodes of the main thread, so it only leaves a note for the loop."""
        if self._state.gate.is_draining:
            self.should_exit = self.force_exit = True
        else:
            self._state.gate.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: begin to drain once asked to."""
        if self._state.gate.is_draining and self._drain is None:
            self._drain = asyncio.create_task(self._finish(), name="evervox drain")
        return await super().on_tick(counter)

    async def _finish(self) -> None:
        num_open = len(self._state.gate)
        say(f"shutting down: {num_open} open, up to {self._state.settings.drain_timeout:g} s")
        await self._state.gate.drain(self._state.settings.drain_timeout)
        self.should_exit = True


async def serve_forever(model: str | None, settings: ServerSettings, **engine_settings: Any) -> None:
    """Serve until a signal comes. `/health` answers while the model is still being loaded. Raises what keeps it from that."""
    engine = Engine.start(model, spare=settings.spare, **engine_settings)
    app = create_app(engine, settings)
    state: State = app.state.evervox
    listener = listen(settings.host, settings.port, settings.request_timeout)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=2 * settings.max_open + SPARE_CONNECTIONS,
        timeout_graceful_shutdown=LAST_SECONDS,
        ws="none",
    )
    server = DrainingServer(config, state)
    opening = asyncio.create_task(_open(engine, server, banner(engine, settings, listener)), name="evervox opening")
    try:
        await server.serve(sockets=[listener])
        await _end(opening)
    finally:
        opening.cancel()
        listener.close()
        await engine.close()


async def _open(engine: Engine, server: DrainingServer, greeting: str) -> None:
    """Load the model, and say so; what keeps it from loading ends the server."""
    try:
        await engine.open()
    except BaseException:
        server.should_exit = True
        raise
    say(greeting)


async def _end(opening: asyncio.Task[None]) -> None:
    """Raises what kept the engine from opening. Leaving while it is still being opened is no failure."""
    if not opening.done():
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening
    else:
        opening.result()


def listen(host: str, port: int, patience: float) -> socket.socket:
    """A listening socket. A client that takes nothing for `patience` seconds is dropped by the kernel. Raises `ConfigError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"host, port: {host}:{port} cannot be used ({error.strerror or error})") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience * 1000))
    listener.setblocking(False)
    return listener


def banner(engine: Engine, settings: ServerSettings, listener: socket.socket) -> str:
    """What a person wants to know first."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    info = engine.info
    is_open = settings.keys is None and settings.keys_file is None
    rows = {
        "page": f"http://{shown}:{port}/",
        "API": f"http://{shown}:{port}/v1   (OpenAPI: /openapi.json)",
        "model": f"{info.name}, {info.sample_rate / 1000:g} kHz, {info.patch_seconds * 1000:g} ms per patch",
        "device": f"{engine.settings.device}, {engine.settings.dtype}",
        "limits": f"{info.max_running} running + {info.max_waiting} waiting, {settings.request_timeout:g} s per request",
        "voices": f"{settings.voices}",
        "keys": "none asked for" if is_open else "asked for",
    }
    if is_open and not host.startswith(LOOPBACK):
        rows["warning"] = "anyone on the network may use this server: give it keys"
    lines = [f"evervox {importlib.metadata.version('evervox')}", *(f"  {name:<8} {text}" for name, text in rows.items())]
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where there is one. Threads that encode give way to the loop soon, not after Python's 5 ms."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
