"""Every kernel compiles for every generation of cards, within its shared memory. No GPU is needed for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evervox.kernels import has_triton

KERNELS = ("_packed", "_decode", "_reduce", "_store", "_add_norm", "_silu_mul", "_rotate")
VAE_KERNELS = ("_depthwise", "_mono", "_windows")
SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
EVERY = [pytest.param(c, ("float16", "bfloat16", "float32"), (64, 128), marks=pytest.mark.slow) for c in SHARED_KIB]


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("capability", "dtypes", "head_dims"), [(90, ("bfloat16",), (128,)), *EVERY])
def test_kernels_compile(capability: int, dtypes: tuple[str, ...], head_dims: tuple[int, ...], tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    arguments = (str(capability), ",".join(dtypes), ",".join(map(str, head_dims)))
    command = [sys.executable, "-m", "tests.kernels.compile_for", *arguments]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout)
    wanted = {(kernel, f"torch.{dtype}") for kernel in KERNELS for dtype in dtypes} | {(k, "torch.float32") for k in VAE_KERNELS}
    assert {(kernel, dtype) for kernel, dtype, _ in notes} >= wanted
    assert max(shared for _, _, shared in notes) <= SHARED_KIB[capability] * 1024
