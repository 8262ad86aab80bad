"""Runs `interpreted/` in a process of its own, under Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evervox.kernels import has_triton

HERE = Path(__file__).parent


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
@pytest.mark.timeout(900)
def test_kernels_under_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout=240", str(HERE / "interpreted")]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 10
