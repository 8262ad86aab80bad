"""A checkpoint folder, a dtype and a device -> everything that computes."""

from __future__ import annotations

import contextlib
import ctypes
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from evervox.errors import ConfigError
from evervox.layers.packed import pack
from evervox.layers.quantized import can_quantize, quantize
from evervox.models.voxcpm.config import VoxConfig
from evervox.models.voxcpm.weights import load_model, load_vae

if TYPE_CHECKING:
    from pathlib import Path

    from evervox.models.voxcpm.model import VoxModel
    from evervox.models.voxcpm.vae import AudioVae

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INT8 = "int8"
"""Linear layers in 8-bit integers, the rest in float32: for CPUs, and only there."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Models ready to run. The VAE is float32, or float64 where the rest is."""

    folder: Path
    config: VoxConfig
    model: VoxModel
    vae: AudioVae


def load(folder: Path, *, dtype: str = "auto", device: str = "auto") -> Loaded:
    """Raises `CheckpointError` for a bad folder, `ConfigError` for a dtype or device that is not there."""
    config = VoxConfig.from_checkpoint(folder)
    where = resolve_device(device)
    kind = resolve_dtype(dtype, where)
    vae_dtype = torch.float64 if kind is torch.float64 else torch.float32
    # the VAE first: its files are closed before the larger part is read, so the peak is lower
    vae = load_vae(folder, config, device=where, dtype=vae_dtype)
    pack(vae)
    kept = _kept_dtype(folder) if dtype == INT8 else kind
    model = load_model(folder, config, dtype=kept, device=where)
    if dtype == INT8:
        quantize(model)
        model.float()
    pack(model)
    _return_freed_memory()
    return Loaded(folder, config, model, vae)


def _kept_dtype(folder: Path) -> torch.dtype:
    """What the checkpoint's weights are stored in: nothing is gained by integers made of wider numbers."""
    stored = json.loads((folder / "config.json").read_text("utf-8")).get("dtype")
    return torch.bfloat16 if stored == "bfloat16" else torch.float32


def _return_freed_memory() -> None:
    """The C library keeps what loading has freed, hundreds of megabytes, unless asked; only glibc can be."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def resolve_device(device: str) -> torch.device:
    """`auto` is the first NVIDIA GPU, or else the CPU."""
    available = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if available else "cpu")
    try:
        where = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device {device!r} is unknown; use auto, cpu, cuda or cuda:N") from None
    if where.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    if where.type == "cuda" and (not available or (where.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device {device!r} is not there: torch sees {torch.cuda.device_count()} CUDA devices")
    return where


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """What is computed in. `auto` is bfloat16 on a GPU and float32 on a CPU; what `int8` leaves is float32."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype == INT8:
        if device.type != "cpu" or not can_quantize():
            raise ConfigError("dtype 'int8' needs an x86 CPU and no GPU; use auto")
        return torch.float32
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r} is unknown; use auto, {', '.join((*DTYPES, INT8))}")
    return DTYPES[dtype]
