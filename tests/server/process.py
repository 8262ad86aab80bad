"""`evervox serve` as its users run it: a process with a worker process of its own, over the engine's fake runner."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from evervox.cli import main; main()", "serve", "--port", "0"]


@dataclass
class Serving:
    """A server process. `log` is where its stderr goes."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = httpx2.get(f"{self.url}/v1/stats").json()
        return stats

    @property
    def held(self) -> dict[str, int]:
        """The ledger's sizes; a connection of our own is in them."""
        return {line["name"]: line["size"] for line in self.stats["ledger"]}

    @property
    def rss(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def is_ready(self) -> bool:
        return httpx2.get(f"{self.url}/ready").status_code == 200

    def kill_worker(self) -> None:
        os.kill(self.stats["engine"]["pid"], signal.SIGKILL)


@contextmanager
def serving(folder: Path, *options: str, model: Path | None = None, fake: dict[str, float] | None = None) -> Iterator[Serving]:
    """A server that is ready; with `fake`, over the fake runner that is told so. Killed in the end if it still runs."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "EVERVOX_SERVER_VOICES": str(folder / "voices"), "PYTHONPATH": str(ROOT)}
    if fake is not None:
        environment |= {"EVERVOX_RUNNER": "tests.engine.fake_runner:create", "FAKE_RUNNER": json.dumps(fake)}
    arguments = [*options, *(["--model", str(model)] if model else [])]
    log = folder / "serve.log"
    with log.open("wb") as out, subprocess.Popen([*COMMAND, *arguments], stderr=out, env=environment) as process:
        try:
            yield Serving(_address(log, process), process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """From the banner, which comes when the model is loaded."""
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"page +(http://[\d.:]+)/", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"no banner: {log.read_text()}")
