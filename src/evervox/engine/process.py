"""One worker process and the two sockets to it. Every worker gets its own, so nothing of a dead one arrives late."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
import zmq.asyncio

from evervox.engine import messages
from evervox.engine.blackbox import Blackbox
from evervox.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from evervox.config import Settings

KILL_SECONDS = 5.0  # for the kernel to take a killed process apart
WORKER_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}
"""What the user has not set. Threads that spin at the end of every product take the core from the one they wait for, and a step
takes up to thirty times as long as soon as another process wants a core; sleeping costs an idle machine nothing to speak of."""
MAX_SOCKET_PATH = 100  # sun_path has 108 bytes


class Launch(msgspec.Struct, frozen=True):
    """All that a worker is told on its command line. `settings` are the checked ones, as a plain dict."""

    model: str
    settings: dict[str, str | int | float | bool | None]
    folder: str
    parent: int
    is_spare: bool = False

    @property
    def inbox(self) -> str:
        return f"ipc://{self.folder}/in"

    @property
    def outbox(self) -> str:
        return f"ipc://{self.folder}/out"

    @property
    def blackbox(self) -> Path:
        return Path(self.folder, "box")


def max_held(settings: Settings) -> int:
    """How many ids a blackbox lane has room for."""
    return 2 * settings.max_running + 1  # two steps on their way share few sequences at worst, and one is being admitted


def _bind(socket: zmq.Socket[Any], address: str) -> None:
    socket.set_hwm(0)  # bounded by admission and by the credit of each stream
    socket.linger = 0
    socket.bind(address)


class WorkerProcess:
    """A worker from spawn to end. `folder` must exist, be private and empty; it is the caller's to remove.

    A spare one imports its libraries, says that it is `Warm`, and waits for `Load`.
    """

    def __init__(
        self, model: Path, settings: Settings, folder: Path, context: zmq.asyncio.Context, *, is_spare: bool = False
    ) -> None:
        if len(os.fsencode(folder)) > MAX_SOCKET_PATH - 4:
            raise ConfigError(f"TMPDIR: sockets in {folder} would have a path of more than {MAX_SOCKET_PATH} bytes")
        self.folder = folder
        self._launch = Launch(str(model), settings.model_dump(mode="json"), str(folder), os.getpid(), is_spare)
        self._push = zmq.Socket(zmq.Context(context), zmq.PUSH)  # sends without asyncio: it never has to wait
        self._pull = context.socket(zmq.PULL)
        _bind(self._push, self._launch.inbox)
        _bind(self._pull, self._launch.outbox)
        self.blackbox = Blackbox(self._launch.blackbox, max_held(settings))
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "evervox.engine.worker", msgspec.json.encode(self._launch).decode()]
        paths = os.pathsep.join(path for path in sys.path if path)
        # Its standard output joins our standard error: ours may carry audio.
        environment = {**WORKER_ENVIRONMENT, **os.environ, "PYTHONPATH": paths}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, env=environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, batch: Sequence[messages.ToWorker]) -> None:
        """Queue messages. Lost if the worker is dead, which `exit_reason` will tell."""
        if not self._push.closed:
            with suppress(zmq.Again):
                self._push.send(messages.encode(batch), zmq.NOBLOCK)

    async def receive(self, timeout: float) -> list[messages.ToClient]:
        """Whatever has arrived by the time anything has; empty after `timeout` seconds."""
        if not await self._pull.poll(int(timeout * 1000)):
            return []
        received: list[messages.ToClient] = []
        while True:
            try:
                received += messages.decode_to_client(await self._pull.recv(zmq.NOBLOCK))
            except zmq.Again:
                return received

    def exit_reason(self) -> str | None:
        """How it ended, or None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    async def end(self, patience: float = 0.0) -> None:
        """Ask it to leave, kill it after `patience` seconds, and free what belongs to it. May be cancelled and called again."""
        try:
            if patience:
                self.send([messages.Shutdown()])
                await self._gone(patience)
        finally:
            self._process.kill()
            self._push.close()
            self._pull.close()
            self.blackbox.close()
        await self._gone(KILL_SECONDS)

    async def _gone(self, patience: float) -> None:
        deadline = asyncio.get_running_loop().time() + patience
        while self.exit_reason() is None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
