"""Sizing the cache: numbers in, a number or an error with the numbers out."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from tools.make_checkpoint import full_config

from evervox.config import Settings
from evervox.errors import ConfigError
from evervox.models.voxcpm.config import VoxConfig
from evervox.runner.memory import MIB, Memory, block_bytes, num_blocks, size_cache
from evervox.runner.runner import default_threads

GIB = 1024 * MIB


def config(size: str) -> VoxConfig:
    import json

    folder = Path(mkdtemp(prefix="evervox-test-"))
    (folder / "config.json").write_text(json.dumps(full_config(size)))
    return VoxConfig.from_checkpoint(folder)


def test_a_block_of_the_published_sizes() -> None:
    """VoxCPM2: 36 layers, 2 heads of 128, keys and values, 16 slots, bf16."""
    assert block_bytes(config("2"), 16, torch.bfloat16) == 36 * 2 * 128 * 2 * 16 * 2
    assert block_bytes(config("0.5b"), 16, torch.float32) == 30 * 2 * 64 * 2 * 16 * 4


def test_as_many_as_wanted_when_they_fit() -> None:
    assert num_blocks(1000, MIB, 4 * GIB, minimum=2) == 1000
    assert num_blocks(10_000, MIB, 4 * GIB, minimum=2) == 4096


@pytest.mark.parametrize("budget", [-3 * GIB, 0, MIB])
def test_a_budget_that_holds_nothing_says_the_numbers(budget: int) -> None:
    with pytest.raises(ConfigError, match=rf"{budget / MIB:.0f} MiB and needs 2\.0 MiB"):
        num_blocks(1000, MIB, budget, minimum=2)


def test_a_card_that_others_fill_is_refused_with_numbers() -> None:
    """A 24 GiB card of which 23 GiB are taken, by us and others."""
    with pytest.raises(ConfigError, match="device_share"):
        size_cache(config("2"), Settings(), torch.bfloat16, Memory(24 * GIB, 23 * GIB), share=0.9)


def test_the_cpu_default_is_bounded_by_full_requests_and_by_a_quarter_of_ram() -> None:
    small = size_cache(config("0.5b"), Settings(max_running=2), torch.float32, Memory(64 * GIB, 0), share=0.25)
    assert small == 2 * 4096 // 16
    large = size_cache(config("2"), Settings(max_running=64), torch.float32, Memory(8 * GIB, 0), share=0.25)
    assert large * block_bytes(config("2"), 16, torch.float32) <= 2 * GIB


def test_kv_bytes_overrides_the_share() -> None:
    each = block_bytes(config("0.5b"), 16, torch.float32)
    assert size_cache(config("0.5b"), Settings(kv_bytes=7 * each), torch.float32, Memory(1, 0), share=0.25) == 7


def test_a_small_model_runs_on_one_thread_and_a_large_one_as_torch_likes() -> None:
    assert default_threads(6_000_000) == 1
    assert default_threads(500_000_000) is None
