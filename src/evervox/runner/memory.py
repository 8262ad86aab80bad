"""How many blocks of KV cache there are: from what is asked for and what the device has. Numbers in, a number out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from evervox.errors import ConfigError

if TYPE_CHECKING:
    from evervox.config import Settings
    from evervox.models.voxcpm.config import VoxConfig

CPU_SHARE = 0.25
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device: all of it, and what is taken once weights, rows, tails, graphs and the worst encode are counted."""

    total: int
    taken: int


def block_bytes(config: VoxConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block in both language models."""
    slots = sum(2 * s.layers * s.kv_heads * s.head_dim for s in (config.lm, config.residual))
    return slots * block_size * dtype.itemsize


def num_blocks(wanted: int, bytes_each: int, budget: int, minimum: int) -> int:
    """As many as wanted, or as the budget holds; `ConfigError` with the numbers where that is fewer than `minimum`."""
    fit = budget // bytes_each
    if fit < minimum:
        raise ConfigError(
            f"the KV cache has {budget / MIB:.0f} MiB and needs {minimum * bytes_each / MIB:.1f} MiB for one request "
            f"({minimum} blocks of {bytes_each / 1024:.0f} KiB): raise kv_bytes or device_share, or lower max_running"
        )
    return min(wanted, fit)


def size_cache(config: VoxConfig, settings: Settings, dtype: torch.dtype, memory: Memory, share: float) -> int:
    """Blocks for `max_running` full-length requests, within `kv_bytes` or else within `share` of the memory."""
    each = block_bytes(config, settings.block_size, dtype)
    longest = -(-config.max_length // settings.block_size)
    budget = settings.kv_bytes if settings.kv_bytes is not None else int(memory.total * share) - memory.taken
    return num_blocks(settings.max_running * longest, each, budget, minimum=2)


def host_memory() -> Memory:
    """This machine's RAM; what others hold of it is not ours to count, since a share of the whole is all that we take."""
    import psutil  # a GPU's machine may lack it

    return Memory(total=psutil.virtual_memory().total, taken=0)


def cuda_memory(device: torch.device) -> Memory:
    """A GPU's memory, other processes' included in what is taken."""
    free, total = torch.cuda.mem_get_info(device)
    return Memory(total=total, taken=total - free)
