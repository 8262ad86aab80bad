"""What an NVIDIA GPU adds to the runner: torch's settings, kernels, recorded shapes, and memory kept for all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch

from evervox.kernels import can_launch
from evervox.runner.memory import Memory, cuda_memory
from evervox.runner.recorder import CudaRecorder
from evervox.runner.simple import encode_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from evervox.config import Settings
    from evervox.layers.attention_metadata import AttentionMetadata
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.runner.load import Loaded
    from evervox.runner.stages import StepAttend

GRAPH_SHARE = 0.1
"""Of a GPU's memory, for recorded shapes, unless `graph_memory` says otherwise."""


def set_up() -> None:
    """Process-wide settings of torch, before the first tensor on a GPU. Without a GPU nothing changes."""
    if not torch.cuda.is_available():
        return
    # cuDNN's attention, torch's first choice on Hopper, spends tenths of a second on a plan for every new batch size
    torch.backends.cuda.enable_cudnn_sdp(False)
    if not any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        _grow_segments()


def _grow_segments() -> None:
    """Memory segments that grow, instead of new ones beside the old, leave no fragments.

    By the call and not by the environment: which variable counts and when it is read differs between releases of torch.
    """
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (newer or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")


def kernel_attend(config: VoxConfig, dtype: torch.dtype) -> Callable[[AttentionMetadata], StepAttend] | None:
    """Our kernels; None where they cannot run or there is none for these heads: plain attention serves then."""
    if not can_launch():
        return None
    from evervox.kernels.attend import KernelAttend
    from evervox.kernels.paged_attention import supports

    return KernelAttend if all(supports(dtype, stack.head_dim) for stack in (config.lm, config.residual)) else None


def recorder(device: torch.device, settings: Settings) -> CudaRecorder | None:
    """None where nothing is to be recorded."""
    return CudaRecorder(device) if settings.graphs else None


def graph_memory(total: int, settings: Settings) -> int:
    """Bytes that recorded shapes may take of a GPU with `total`."""
    if not settings.graphs:
        return 0
    return int(total * GRAPH_SHARE) if settings.graph_memory is None else settings.graph_memory


def memory_taken(loaded: Loaded, settings: Settings) -> Memory:
    """What is left for the KV cache once weights, rows, recorded shapes and the longest clip's encoding have theirs."""
    device = loaded.model.device
    encoding = _peak_of_encoding(loaded, settings.max_clip_seconds)
    torch.cuda.empty_cache()
    now = cuda_memory(device)
    rows = (settings.max_running + 1) * loaded.vae.new_tails(1).num_bytes
    return Memory(now.total, now.taken + encoding + rows + graph_memory(now.total, settings))


def _peak_of_encoding(loaded: Loaded, seconds: float) -> int:
    """Bytes beyond what is held before and after."""
    config, device = loaded.config, loaded.model.device
    patches = max(1, int(seconds * config.vae.encoder_sample_rate / config.encoder_samples_per_patch))
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    encode_samples(loaded, np.zeros(patches * config.encoder_samples_per_patch, np.float32))
    return torch.cuda.max_memory_allocated(device) - before
