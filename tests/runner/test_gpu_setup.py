"""What the GPU's set-up decides from numbers and installed packages alone."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from tools.make_checkpoint import make

from evervox.config import Settings
from evervox.kernels import has_triton
from evervox.models.voxcpm.config import VoxConfig
from evervox.runner import gpu
from evervox.runner.runner import create


def config(kind: str = "voxcpm2") -> VoxConfig:
    return VoxConfig.from_checkpoint(make(kind, Path(mkdtemp(prefix="evervox-test-"))))


def test_graph_memory_is_a_tenth_unless_said() -> None:
    assert gpu.graph_memory(80_000, Settings.read()) == 8000
    assert gpu.graph_memory(80_000, Settings.read(graph_memory=5)) == 5
    assert gpu.graph_memory(80_000, Settings.read(graphs=False)) == 0


def test_the_allocator_is_told_to_grow_segments_unless_somebody_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch, "__version__", "2.8.0+cu128")
    gpu.set_up_allocator()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    gpu.set_up_allocator()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "max_split_size_mb:64"


def test_without_triton_or_a_kernel_for_the_heads_plain_attention_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_triton", lambda: False)
    assert gpu.kernel_attend(config(), torch.bfloat16) is None


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
def test_kernels_serve_the_dtypes_and_heads_that_they_know() -> None:
    assert gpu.kernel_attend(config(), torch.float64) is None
    assert gpu.kernel_attend(config(), torch.bfloat16) is not None


def test_a_runner_on_the_cpu_records_nothing_and_takes_the_settings_slots() -> None:
    folder = make("voxcpm", Path(mkdtemp(prefix="evervox-test-")))
    runner = create(folder, Settings.read(device="cpu", slots_per_step=48, max_running=3, kv_bytes=2**20))
    assert len(runner.graphs) == 0
    assert runner.graphs.size_for("prefill", 37) == 37
    assert (runner.stages.max_slots, runner.stages.max_rows) == (48, 3)
