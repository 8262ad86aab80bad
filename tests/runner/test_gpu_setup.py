"""What the GPU's set-up decides from numbers and installed packages alone."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pytest
import torch
from tools.make_checkpoint import make

from evervox.config import Settings
from evervox.kernels import has_triton
from evervox.models.voxcpm.config import VoxConfig
from evervox.runner import gpu
from evervox.runner.runner import create

if TYPE_CHECKING:
    from collections.abc import Iterator


def config(kind: str = "voxcpm2") -> VoxConfig:
    return VoxConfig.from_checkpoint(make(kind, Path(mkdtemp(prefix="evervox-test-"))))


def test_graph_memory_is_a_tenth_unless_said() -> None:
    assert gpu.graph_memory(80_000, Settings.read()) == 8000
    assert gpu.graph_memory(80_000, Settings.read(graph_memory=5)) == 5
    assert gpu.graph_memory(80_000, Settings.read(graphs=False)) == 0


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the allocator is told, on a machine that says it has a GPU."""
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    return told


@pytest.fixture(autouse=True)
def attention_as_it_was() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_segments_grow_and_cudnn_attends_nothing(told: list[str]) -> None:
    gpu.set_up()
    assert told == ["expandable_segments:True"]
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_an_older_torch_is_told_its_own_way(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", told.append)
    gpu.set_up()
    assert told == ["expandable_segments:True"]


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_somebody_said_of_the_allocator_stays(name: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:64")
    gpu.set_up()
    assert not told


def test_nothing_is_set_without_a_gpu(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.set_up()
    assert not told
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_where_kernels_do_not_run_plain_attention_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "can_launch", lambda: False)
    assert gpu.kernel_attend(config(), torch.bfloat16) is None


@pytest.mark.skipif(not has_triton(), reason="triton is not installed")
def test_kernels_serve_the_dtypes_and_heads_that_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "can_launch", lambda: True)
    assert gpu.kernel_attend(config(), torch.float64) is None
    assert gpu.kernel_attend(config(), torch.bfloat16) is not None


def test_a_runner_on_the_cpu_records_nothing_and_takes_the_settings_slots() -> None:
    folder = make("voxcpm", Path(mkdtemp(prefix="evervox-test-")))
    runner = create(folder, Settings.read(device="cpu", slots_per_step=48, max_running=3, kv_bytes=2**20))
    assert len(runner.graphs) == 0
    assert runner.graphs.size_for("prefill", 37) == 37
    assert (runner.stages.max_slots, runner.stages.max_rows) == (48, 3)
