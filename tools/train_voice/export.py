"""Writes a run as a VoxCPM2 checkpoint folder that the reference's own loader reads."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from . import codec, grammar, tokenizer
from .layers import HEAD_DIM, StackShape
from .model import FSQ_SCALE, PATCH, ModelShape
from .normalise import Scale, fold

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 2048
TIMESTEPS = 5
"""Solver steps where none are asked for: as well understood as with 10."""


def checkpoint_config(shape: ModelShape) -> dict[str, Any]:
    """`config.json` of the folder."""
    lm = shape.lm
    ones = [1.0] * (HEAD_DIM // 2)
    rope = {"type": "longrope", "long_factor": ones, "short_factor": ones, "original_max_position_embeddings": LONGEST}
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": lm.hidden,
            "intermediate_size": lm.ffn,
            "max_position_embeddings": LONGEST,
            "num_attention_heads": lm.heads,
            "num_hidden_layers": lm.layers,
            "num_key_value_heads": lm.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "kv_channels": HEAD_DIM,
            "rope_scaling": rope,
            "vocab_size": shape.vocabulary,
            "use_mup": False,
            "scale_emb": 1.0,
            "dim_model_base": lm.hidden,
            "scale_depth": 1.0,
        },
        "patch_size": PATCH,
        "feat_dim": shape.latent,
        "scalar_quantization_latent_dim": shape.fsq,
        "scalar_quantization_scale": FSQ_SCALE,
        "residual_lm_num_layers": shape.residual.layers,
        "residual_lm_no_rope": True,
        "encoder_config": _local(shape.encoder),
        "dit_config": {
            **_local(shape.dit),
            "cfm_config": {
                "sigma_min": 1e-6,
                "solver": "euler",
                "t_scheduler": "log-norm",
                "training_cfg_rate": 0.1,
                "inference_cfg_rate": 2.0,
            },
        },
        "audio_vae_config": {**codec.CONFIG, "latent_dim": shape.latent},
        "max_length": LONGEST,
        "device": "cpu",
        "dtype": "float32",
    }


def _local(shape: StackShape) -> dict[str, int]:
    return {
        "hidden_dim": shape.hidden,
        "ffn_dim": shape.ffn,
        "num_heads": shape.heads,
        "num_layers": shape.layers,
        "kv_channels": HEAD_DIM,
    }


def export(folder: Path, shape: ModelShape, weights: dict[str, Tensor]) -> None:
    """Everything that training changes: config, tokenizer, vocabulary and weights, in bfloat16 for size."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint_config(shape), indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"inference_timesteps": TIMESTEPS}) + "\n")
    (folder / "vocabulary.txt").write_text("\n".join(grammar.VOCABULARY) + "\n")
    tokenizer.save(folder)
    kept = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items() if not name.startswith("aux_")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def export_codec(folder: Path, source: Path, scale: Scale) -> None:
    """The codec with the latents' scale folded in, in float32."""
    from safetensors.torch import load_file

    state = {name: value.contiguous() for name, value in fold(load_file(source), scale).items()}
    save_file(state, folder / "audiovae.safetensors", metadata={"format": "pt"})


def copy_notice(folder: Path) -> None:
    """The teacher's NOTICE, which its licence asks to keep."""
    from importlib.metadata import distribution

    for file in distribution("hibari-tts").files or []:
        if file.name == "NOTICE":
            shutil.copyfile(str(file.locate()), folder / "NOTICE")
