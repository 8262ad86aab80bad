"""Ways to run the command: in its own process, or by its `main` in this one."""

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from evervox.cli import main

COMMAND = Path(sys.executable).with_name("evervox")


@dataclass(frozen=True)
class Ran:
    returncode: int
    stdout: bytes
    stderr: str


def run(*arguments: object, stdin: bytes = b"") -> Ran:
    """In a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    command = [str(COMMAND), *map(str, arguments)]
    ran = subprocess.run(command, input=stdin, capture_output=True, env=environment, check=False, timeout=100)
    return Ran(ran.returncode, ran.stdout, ran.stderr.decode())


class Here:
    """By its `main`, in an empty folder; what it wrote is taken from the file descriptors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self._monkeypatch, self._captured = monkeypatch, capfdbinary

    def __call__(self, *arguments: object, stdin: str = "") -> Ran:
        self._monkeypatch.setattr(sys, "argv", ["evervox", *map(str, arguments)])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        out, error = self._captured.readouterr()
        return Ran(int(ended.value.code or 0), out, error.decode())
