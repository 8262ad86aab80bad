"""The worker process: loads the runner, then loops until it is told to leave or its parent is gone."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import zmq

from evervox.conditioning.clips import ClipCache
from evervox.config import Settings
from evervox.core.limits import SchedulerLimits
from evervox.core.scheduler import Scheduler
from evervox.engine import messages
from evervox.engine.blackbox import Blackbox
from evervox.engine.intake import Intake
from evervox.engine.loop import Loop
from evervox.engine.process import Launch, max_held
from evervox.ledger import Ledger
from evervox.models.voxcpm.config import VoxConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from evervox.runner.inputs import Runner

_PR_SET_PDEATHSIG = 1
SPARE_SECONDS = 1.0  # how soon a spare worker sees that its parent has gone

log = logging.getLogger(__name__)


class SocketPort:
    """The worker's ends of the two sockets, and a third inside the process by which other threads wake it."""

    def __init__(self, launch: Launch) -> None:
        self._context = zmq.Context()
        self._pull = self._socket(zmq.PULL, launch.inbox)
        self._push = self._socket(zmq.PUSH, launch.outbox)
        self._woken: zmq.Socket[bytes] = self._context.socket(zmq.PULL)
        self._woken.bind("inproc://wake")
        self._poller = zmq.Poller()
        self._poller.register(self._pull, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)
        self._waker: zmq.Socket[bytes] | None = None

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(0)
        socket.linger = 1000
        socket.connect(address)
        return socket

    def wake(self) -> None:
        """End the wait of `receive`. Called from the encoder's thread alone."""
        if self._waker is None:
            self._waker = self._context.socket(zmq.PUSH)
            self._waker.connect("inproc://wake")
        self._waker.send(b"")

    def receive(self, timeout: float) -> list[messages.ToWorker]:
        """All that has arrived, once anything has or `timeout` seconds have passed."""
        if timeout:
            self._poller.poll(int(timeout * 1000))
        for _ in _frames(self._woken):
            pass
        return [message for frame in _frames(self._pull) for message in messages.decode_to_worker(frame)]

    def send(self, batch: list[messages.ToClient]) -> None:
        self._push.send(messages.encode(batch))

    def close(self) -> None:
        """Send what is queued, a second at most."""
        self._context.destroy()


def _frames(socket: zmq.Socket[bytes]) -> list[bytes]:
    frames: list[bytes] = []
    while True:
        try:
            frames.append(socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return frames


def main(argument: str) -> int:
    """Run as `python -m evervox.engine.worker`. Exit code 0 after a request to leave, 1 where it could not start or go on."""
    launch = msgspec.json.decode(argument, type=Launch)
    _die_with(launch.parent)
    logging.basicConfig(level=logging.WARNING, format="evervox worker: %(message)s")
    port = SocketPort(launch)
    if launch.is_spare and not _is_needed(launch, port):
        port.close()
        return 0
    try:
        loop = _build(launch, port)
    except Exception as error:
        log.debug("cannot start", exc_info=True)
        port.send([messages.Refused(*messages.describe(error))])
        port.close()
        return 1
    port.send([messages.Ready(os.getpid())])
    try:
        loop.run(lambda: os.getppid() == launch.parent)
    except Exception:
        log.exception("the worker ends")
        return 1
    finally:
        port.close()
    return 0


def _die_with(parent: int) -> None:
    """Get SIGKILL when the parent ends, however it ends; its Ctrl-C and SIGTERM are for the parent to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _is_needed(launch: Launch, port: SocketPort) -> bool:
    """Import what takes long to import, and wait. False where nobody will ask any more."""
    _factory(Settings.read(**launch.settings).runner)
    port.send([messages.Warm()])
    while os.getppid() == launch.parent:
        for message in port.receive(SPARE_SECONDS):
            return isinstance(message, messages.Load)
    return False


def _build(launch: Launch, port: SocketPort) -> Loop:
    settings = Settings.read(**launch.settings)
    runner = _factory(settings.runner)(Path(launch.model), settings)
    ledger = Ledger()
    blackbox = Blackbox(launch.blackbox, max_held(settings))
    max_queued = 4 * (settings.max_running + settings.max_waiting)
    intake = Intake(runner, blackbox, cache=ClipCache(settings.clip_cache_bytes), max_queued=max_queued, wake=port.wake)
    patch_seconds = VoxConfig.from_checkpoint(launch.model).patch_seconds
    scheduler = Scheduler(_limits(runner.num_blocks, patch_seconds, settings), secrets.token_bytes(32))
    intake.register(ledger)
    _register(ledger, runner, scheduler)
    return Loop(runner, scheduler, intake, port=port, blackbox=blackbox, ledger=ledger)


def _factory(name: str) -> Callable[[Path, Settings], Runner]:
    module, function = name.split(":")
    return cast("Callable[[Path, Settings], Runner]", getattr(importlib.import_module(module), function))


def _limits(num_blocks: int, patch_seconds: float, settings: Settings) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=num_blocks,
        max_running=settings.max_running,
        slots_per_step=settings.slots_per_step,
        patch_seconds=patch_seconds,
        block_size=settings.block_size,
        first_audio_target=settings.first_audio_target,
    )


def _register(ledger: Ledger, runner: Runner, scheduler: Scheduler) -> None:
    limits = scheduler.limits
    ledger.register("sequences running", lambda: scheduler.num_running, limit=limits.max_running, owner="scheduler")
    ledger.register("sequences waiting", lambda: scheduler.num_waiting, limit=None, owner="scheduler")
    ledger.register("prefix table", lambda: scheduler.table_size, limit=limits.num_blocks, owner="block pool")
    ledger.register("blocks free", lambda: scheduler.num_free_blocks, limit=limits.num_blocks, owner="block pool")
    runner.register(ledger)


if __name__ == "__main__":
    code = main(sys.argv[1])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # nothing here needs torch and its modules taken apart, which takes up to a second
