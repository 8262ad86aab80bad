"""From a checkpoint folder to a model: strict, streamed tensor by tensor, in the shapes that the model runs in.

Reads `model.safetensors`, sharded `*.safetensors`, `pytorch_model.bin`, and `audiovae.safetensors` or `audiovae.pth`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from evervox.errors import CheckpointError
from evervox.models.voxcpm.model import VoxModel
from evervox.models.voxcpm.vae import AudioVae
from evervox.models.voxcpm.vae_weights import vae_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from evervox.models.voxcpm.config import VoxConfig

VAE_FILES = ("audiovae.safetensors", "audiovae.pth")
MAPPED_BYTES = 256 * 2**20
"""A mapped file's pages count as ours while it is open: reopen it after this much."""

RENAMES = (
    (r"^embed_tokens\.", "base_lm.embed_tokens."),
    (r"^lm\.", "base_lm."),
    (r"^residual\.", "residual_lm."),
    (r"^encoder\.stack\.", "feat_encoder.encoder."),
    (r"^encoder\.", "feat_encoder."),
    (r"^dit\.stack\.", "feat_decoder.estimator.decoder."),
    (r"^dit\.(time|delta_time)\.", r"feat_decoder.estimator.\1_mlp."),
    (r"^dit\.", "feat_decoder.estimator."),
    (r"^fsq\.", "fsq_layer."),
    (r"^(enc_to_lm|lm_to_dit|res_to_dit)\.", r"\1_proj."),
    (r"^fusion\.", "fusion_concat_proj."),
    (r"\.first\.", ".linear_1."),
    (r"\.second\.", ".linear_2."),
    (r"\.attention\.out\.", ".self_attn.o_proj."),
    (r"\.mlp\.down\.", ".mlp.down_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.mlp_norm\.", ".post_attention_layernorm."),
)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one raw tensor goes: rows `[start, stop)` of our parameter, all of it when `stop` is None."""

    name: str
    start: int = 0
    stop: int | None = None


def routes(names: Iterable[str], config: VoxConfig) -> dict[str, Destination]:
    """For each of our parameters, the reference tensors that it is made of: raw name -> destination."""
    return {raw: to for name in names for raw, to in _sources(name, config)}


def _sources(name: str, config: VoxConfig) -> Iterator[tuple[str, Destination]]:
    raw = name
    for ours, theirs in RENAMES:
        raw = re.sub(ours, theirs, raw)
    stacks = {"lm": config.lm, "residual": config.residual, "encoder": config.encoder}
    stack = stacks.get(name.split(".", maxsplit=1)[0], config.dit)
    queries, keys = stack.heads * stack.head_dim, stack.kv_heads * stack.head_dim
    fused = {
        ".attention.qkv.": (".self_attn.", {"q_proj": queries, "k_proj": keys, "v_proj": keys}),
        ".mlp.gate_up.": (".mlp.", {"gate_proj": stack.ffn, "up_proj": stack.ffn}),
    }
    for ours, (theirs, parts) in fused.items():
        if ours in raw:
            start = 0
            for part, rows in parts.items():
                yield raw.replace(ours, f"{theirs}{part}."), Destination(name, start, start + rows)
                start += rows
            return
    yield raw, Destination(name)


def load_model(folder: Path, config: VoxConfig, *, dtype: torch.dtype, device: torch.device) -> VoxModel:
    """Build the language models, encoder and DiT in `dtype` on `device`. Raises `CheckpointError` listing every bad tensor."""
    with torch.device("meta"):
        model = VoxModel(config)
    state = {name: torch.empty(p.shape, dtype=dtype, device=device) for name, p in model.named_parameters()}
    _fill(state, _model_tensors(folder), config, folder)
    model.load_state_dict(state, assign=True, strict=True)
    model = model.to(device).eval().requires_grad_(False)
    return model.double() if dtype is torch.float64 else model


def _fill(state: dict[str, Tensor], tensors: Iterator[tuple[str, Tensor]], config: VoxConfig, folder: Path) -> None:
    waiting = routes(state, config)
    leftover: list[str] = []
    misshaped: list[str] = []
    for raw, tensor in tensors:
        to = waiting.pop(raw, None)
        if to is None:
            leftover.append(raw)
            continue
        target = state[to.name][to.start : to.stop]
        if target.shape != tensor.shape:
            misshaped.append(f"{raw} is {list(tensor.shape)}, expected {list(target.shape)}")
            continue
        target.copy_(tensor)
    report(folder, missing=sorted(waiting), leftover=leftover, misshaped=misshaped)


def report(folder: Path, *, missing: list[str], leftover: list[str], misshaped: list[str]) -> None:
    """One error that lists everything that does not fit, or nothing."""
    parts = [
        f"{len(names)} {kind}: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        for kind, names in (("missing", missing), ("left over", leftover), ("of the wrong shape", misshaped))
        if names
    ]
    if parts:
        raise CheckpointError(f"the weights in {folder} do not fit its config.json: " + "; ".join(parts))


def load_vae(folder: Path, config: VoxConfig, *, device: torch.device, dtype: torch.dtype = torch.float32) -> AudioVae:
    """Build the VAE, its weight norm folded. Raises `CheckpointError` listing every bad tensor."""
    path = next((folder / name for name in VAE_FILES if (folder / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{folder} has no VAE: expected {' or '.join(VAE_FILES)}")
    read = vae_state(dict(_tensors(path)), config.vae, dtype)
    report(folder, missing=read.missing, leftover=read.leftover, misshaped=read.misshaped)
    with torch.device("meta"):
        vae = AudioVae(config.vae)
    vae.load_state_dict(read.state, assign=True, strict=True)
    return vae.to(device).eval().requires_grad_(False)


def _model_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    single, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if single.is_file():
        return _tensors(single)
    shards = sorted(p for p in folder.glob("*.safetensors") if p.name not in (*VAE_FILES, "lora_weights.safetensors"))
    if shards:
        return (item for shard in shards for item in _tensors(shard))
    if pickled.is_file():
        return _tensors(pickled)
    raise CheckpointError(f"{folder} has no weights: expected model.safetensors, sharded *.safetensors or pytorch_model.bin")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    try:
        yield from _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        names = sorted(file.keys())
    while names:
        mapped = 0
        with safe_open(path, framework="pt") as file:
            while names and mapped < MAPPED_BYTES:
                tensor = file.get_tensor(names[0])
                mapped += tensor.nbytes
                yield names.pop(0), tensor


def _pickled(path: Path) -> Iterator[tuple[str, Tensor]]:
    raw = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    yield from raw.get("state_dict", raw).items()
