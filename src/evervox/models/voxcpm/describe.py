"""What a folder holds, for a person: a checkpoint's family, sizes and rates, or a LoRA adapter. Reads headers, never weights."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evervox.errors import CheckpointError
from evervox.models.voxcpm.config import VoxConfig

if TYPE_CHECKING:
    from evervox.models.voxcpm.config import TransformerConfig

MAX_HEADER = 100_000_000
"""Bytes; the safetensors format's own limit."""
PARTS = {"base_lm": "LM", "residual_lm": "residual LM", "feat_encoder": "local encoder", "feat_decoder": "DiT"}
ADAPTER_CONFIG = "lora_config.json"


def describe(folder: str | Path) -> list[tuple[str, str]]:
    """(name, value) lines. Raises `CheckpointError` when the folder is neither a checkpoint nor an adapter."""
    folder = Path(folder).expanduser()
    if not (folder / "config.json").exists() and (folder / ADAPTER_CONFIG).exists():
        return [("adapter", _adapter(folder))]
    config = VoxConfig.from_checkpoint(folder)
    return [*_model(config), *_weights(folder), *_adapters(folder)]


def _model(config: VoxConfig) -> list[tuple[str, str]]:
    vae = config.vae
    return [
        ("family", config.name + (" (reference clips and instructions)" if config.has_reference else "")),
        ("audio out", f"{vae.sample_rate:,} Hz, {1000 * config.patch_seconds:g} ms per patch"),
        ("clips in", f"{vae.encoder_sample_rate:,} Hz, {config.encoder_samples_per_patch:,} samples per patch"),
        ("patch", f"{config.patch_size} frames of {config.latent_dim}; FSQ {config.fsq_dim} x {2 * config.fsq_scale + 1} levels"),
        ("length", f"{config.max_length:,} slots, {config.max_length * config.patch_seconds:.0f} s of audio at most"),
        ("vocabulary", f"{config.vocab_size:,} tokens"),
        ("solver", f"{config.timesteps} timesteps unless a request says otherwise"),
        ("LM", _stack(config.lm)),
        ("residual LM", _stack(config.residual)),
        ("local encoder", _stack(config.encoder)),
        ("DiT", _stack(config.dit)),
    ]


def _stack(stack: TransformerConfig) -> str:
    heads = f"{stack.heads} heads of {stack.head_dim}, {stack.kv_heads} for keys"
    positions = "" if stack.rope else ", no positions"
    return f"{stack.layers} x hidden {stack.hidden:,}, ffn {stack.ffn:,}, {heads}{positions}"


def _weights(folder: Path) -> list[tuple[str, str]]:
    """Parameters by part, from the headers of the safetensors files; a pickled file is named with its size only."""
    lines, counts = [], dict.fromkeys((*PARTS.values(), "projections", "VAE"), 0)
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pth")):
        detail = ""
        if path.suffix == ".safetensors":
            tensors = _header(path)
            for name, tensor in tensors.items():
                own = PARTS.get(name.split(".", maxsplit=1)[0], "projections")
                counts["VAE" if path.stem == "audiovae" else own] += math.prod(tensor["shape"])
            detail = f", {len(tensors)} tensors, {'/'.join(sorted({t['dtype'] for t in tensors.values()}))}"
        lines.append((path.name, f"{path.stat().st_size / 1e6:,.1f} MB{detail}"))
    told = ", ".join(f"{name} {_millions(count)}" for name, count in counts.items() if count)
    return [*lines, ("parameters", f"{_millions(sum(counts.values()))}: {told}")] if told else lines


def _millions(count: int) -> str:
    return f"{count / 1e6:,.0f} M" if count >= 10e6 else f"{count / 1e6:.2f} M"


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors that a safetensors file lists. Source: the format's description."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            raw: dict[str, dict[str, Any]] = json.loads(file.read(min(size, MAX_HEADER)))
    except (OSError, struct.error, ValueError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from None
    return {name: tensor for name, tensor in raw.items() if name != "__metadata__"}


def _adapters(folder: Path) -> list[tuple[str, str]]:
    """Adapters in the folder itself or in the folders right below it."""
    found = sorted(folder.glob(ADAPTER_CONFIG)) + sorted(folder.glob(f"*/{ADAPTER_CONFIG}"))
    return [(f"adapter {path.parent.name}", _adapter(path.parent)) for path in found]


def _adapter(folder: Path) -> str:
    path = folder / ADAPTER_CONFIG
    try:
        raw = json.loads(path.read_text("utf-8"))
        settings = raw.get("lora_config", raw)
        rank, alpha = settings.get("r", "?"), settings.get("alpha", "?")
        parts = [part for part in ("lm", "dit", "proj") if settings.get(f"enable_{part}")]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is not an adapter's config: {error}") from None
    size = sum(file.stat().st_size for file in folder.glob("lora_weights.*"))
    return f"rank {rank}, alpha {alpha}, on {', '.join(parts) or 'nothing'}, {size / 1e6:,.1f} MB"
