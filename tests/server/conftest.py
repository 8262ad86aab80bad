from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from tests.server.fake import FakeEngine

from evervox.config import ServerSettings
from evervox.server.app import create_app
from evervox.server.host import DrainingServer, listen
from evervox.server.requestlog import RequestLog, set_up_logging

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Running:
    """A server of a fake engine in a thread of its own."""

    url: str
    engine: FakeEngine
    server: DrainingServer
    lines: list[str]

    @property
    def state(self) -> Any:
        return self.server.config.app.state.evervox


class Lines:
    """A stream to log to."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        if text.strip():
            self.lines.append(text)

    def flush(self) -> None:
        return


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers; all are stopped in the end."""
    with _starter(tmp_path) as starter:
        yield starter


@pytest.fixture(scope="module")
def module_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The same, for servers that a whole module shares."""
    with _starter(tmp_path_factory.mktemp("server")) as starter:
        yield starter


@pytest.fixture
def running(start: Start) -> Running:
    return start()


@contextmanager
def _starter(folder: Path) -> Iterator[Start]:
    started: list[tuple[DrainingServer, threading.Thread]] = []

    def start(engine: FakeEngine | None = None, **settings: Any) -> Running:
        engine = engine or FakeEngine()
        given = ServerSettings.read(**{"voices": folder / "voices", "port": 0, **settings})
        set_up_logging(given.log_format)
        log = Lines()
        listener = listen(given.host, 0, given.request_timeout)
        up = threading.Event()
        made: list[DrainingServer] = []

        async def main() -> None:
            app = create_app(engine, given, log=RequestLog(given.log_format, log))  # type: ignore[arg-type]
            config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=2)
            made.append(DrainingServer(config, app.state.evervox))
            up.set()
            await made[0].serve(sockets=[listener])

        thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
        thread.start()
        assert up.wait(10)
        started.append((made[0], thread))
        while not made[0].started and thread.is_alive():
            threading.Event().wait(0.01)
        return Running(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, made[0], log.lines)

    try:
        yield start
    finally:
        for server, thread in started:
            server.should_exit = True
            thread.join(10)
