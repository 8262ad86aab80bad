"""The recipe in one minute, killed in the middle: what it leaves is what an undisturbed run leaves."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODEC = ROOT / "src" / "evervox" / "voice" / "audiovae.safetensors"
STEPS = 6

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
for needed in ("hibari", "onnx", "scipy", "voxcpm"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs the recipe's packages: {needed} is missing", allow_module_level=True)


def start(runs: Path, *stage: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tools.train_voice", "--runs", str(runs), *stage]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def run(runs: Path, *stage: str) -> None:
    process = start(runs, *stage)
    output, _ = process.communicate()
    assert process.returncode == 0, output


def kill_when(process: subprocess.Popen[str], path: Path) -> None:
    """Kills it as soon as `path` is there."""
    while not path.exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_killed_run_ends_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    import torch

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    data = ("data", "--shards", "2", "--utterances", "24")
    run(whole, *data)
    kill_when(start(broken, *data), broken / "data" / "0000.npz")
    run(broken, *data)
    for name in ("0000.npz", "0001.npz"):
        assert (whole / "data" / name).read_bytes() == (broken / "data" / name).read_bytes()

    run(whole, "vae", "--steps", "2")
    assert (whole / "vae" / "audiovae.safetensors").exists()
    codec = ("--codec", str(CODEC))  # two steps make no codec
    latents = ("latents", "--plain", *codec)
    run(whole, *latents)
    kill_when(start(broken, *latents), broken / "latents" / "0000.npz")
    run(broken, *latents)

    lm = ("lm", "--steps", str(STEPS), "--save-every", "0")
    run(whole, *lm)
    kill_when(start(broken, *lm), broken / "lm" / "state.pt")
    run(broken, *lm)
    states = [torch.load(runs / "lm" / "state.pt", weights_only=True) for runs in (whole, broken)]
    assert states[0]["step"] == states[1]["step"] == STEPS
    for name, value in states[0]["average"].items():
        assert torch.equal(value, states[1]["average"][name]), name

    run(whole, "export", *codec, "--out", str(tmp_path / "voice"))
    config = json.loads((tmp_path / "voice" / "config.json").read_text())
    assert config["architecture"] == "voxcpm2"
    assert sum(file.stat().st_size for file in (tmp_path / "voice").iterdir()) < 16_000_000
