"""The GPU check runs from end to end on a CPU, on a machine that has little installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import runpy, sys

class Missing:
    NAMES = {names}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.NAMES:
            raise ModuleNotFoundError(f"No module named {{name!r}}: it is not on a machine that has a GPU alone")

sys.meta_path.insert(0, Missing())
sys.path.insert(0, ".")
sys.argv = ["gpu_check", "--dry-run", "--out", {out!r}]
runpy.run_module("tools.gpu_check", run_name="__main__")
"""
NOT_THERE = ("av", "fastapi", "uvicorn", "msgspec", "zmq", "pydantic_settings", "psutil", "typer", "rich", "pytest", "hypothesis")


@pytest.mark.timeout(300)
def test_the_gpu_check_runs_dry_and_needs_little(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    program = PROGRAM.format(names=set(NOT_THERE), out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert all(check["passed"] for check in found["checks"])
    assert len(found["checks"]) >= 7
    (bench,) = found["bench"]
    assert set(bench["decode_ms"]) == {"1", "2"}
    assert bench["first_audio_ms"] > 0
    assert "floor" in done.stdout
