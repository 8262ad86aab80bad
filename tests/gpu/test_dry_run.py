"""The GPU check runs from end to end on a CPU, on a machine that has little installed."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from tools.gpu_check import parts

BLOCKER = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {names} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
NOT_THERE = ("av", "fastapi", "uvicorn", "msgspec", "zmq", "pydantic_settings", "psutil", "typer", "rich", "pytest", "hypothesis")


@pytest.mark.timeout(300)
def test_the_gpu_check_runs_dry_and_needs_little(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(names=set(NOT_THERE)))
    command = [sys.executable, "-m", "tools.gpu_check", "--dry-run", "--out", str(out)]
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert all(check["passed"] for check in found["checks"])
    assert len(found["checks"]) >= 7
    (bench,) = found["bench"]
    assert set(bench["decode_ms"]) == {"1", "2"}
    assert bench["first_audio_ms"] > 0
    assert "floor" in done.stdout


NAMES = ["one", "two", "three", "four"]
OPTIONS = Namespace(out=None, dry_run=True)


def process(first: int, ends_at: int | None, fails_at: int | None) -> tuple[list[dict[str, Any]], str]:
    """What a process that begins with check `first` writes, and how it ends."""
    lines: list[dict[str, Any]] = [{"machine": {"device": "x"}, "total": len(NAMES), "names": NAMES}]
    for number in range(first, len(NAMES)):
        if number == ends_at:
            return lines, "its process ended with code -6"
        lines.append({"name": NAMES[number], "passed": number != fails_at, "detail": "", "seconds": 0.0})
        if number == fails_at:
            break
    return lines, ""


@pytest.mark.parametrize("ends_at", [None, 0, 1, 3])
@pytest.mark.parametrize("fails_at", [None, 0, 2, 3])
def test_a_check_that_takes_its_process_down_costs_no_other_its_result(
    monkeypatch: pytest.MonkeyPatch, ends_at: int | None, fails_at: int | None
) -> None:
    monkeypatch.setattr(parts, "run", lambda part, options: process(int(part[1]), ends_at, fails_at))
    found: parts.Found = {"checks": []}
    parts.run_checks(found, OPTIONS)
    assert [check["name"] for check in found["checks"]] == NAMES
    assert [check["passed"] for check in found["checks"]] == [n not in (ends_at, fails_at) for n in range(len(NAMES))]


def test_no_gpu_at_all_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "run", lambda part, options: ([], "its process ended with code 1"))
    found: parts.Found = {"checks": [], "bench": []}
    parts.run_checks(found, OPTIONS)
    parts.run_bench(found, OPTIONS, "2")
    assert [check["passed"] for check in found["checks"]] == [False]
    assert found["bench"] == [{"size": "2", "error": "its process ended with code 1"}]
