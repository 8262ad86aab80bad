"""Write a random checkpoint in the real on-disk format: tiny ones for tests, real sizes for benchmarks.

    python tools/make_checkpoint.py voxcpm2 /tmp/tiny            # tiny, float32
    python tools/make_checkpoint.py voxcpm /tmp/half --size 0.5b # VoxCPM-0.5B's sizes in bfloat16

The tensors carry the reference's names, weight norm pairs included, so the `voxcpm` package loads the folder as well.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers
from torch import Tensor

from evervox.models.voxcpm.config import VoxConfig
from evervox.models.voxcpm.model import VoxModel
from evervox.models.voxcpm.vae_weights import raw_vae_shapes
from evervox.models.voxcpm.weights import routes

KINDS = ("voxcpm", "voxcpm1.5", "voxcpm2")
Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=("tiny", "0.5b", "1.5", "2"), default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.kind, options.folder, size=options.size, seed=options.seed)
    print(f"{options.folder}: {sum(p.stat().st_size for p in options.folder.iterdir()) / 1e6:.1f} MB")


def make(kind: str, folder: Path, *, size: str = "tiny", seed: int = 0, changes: Json | None = None) -> Path:
    """Write the folder and return it. `changes` is merged into the config, for tests of odd shapes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(kind) if size == "tiny" else full_config(size)
    (folder / "config.json").write_text(json.dumps(merge(config, changes or {}), indent=1))
    parsed = VoxConfig.from_checkpoint(folder)
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if config["dtype"] == "float32" else torch.bfloat16
    save_file(_model_tensors(parsed, generator, dtype), str(folder / "model.safetensors"))
    save_file(_vae_tensors(parsed, generator), str(folder / "audiovae.safetensors"))
    write_tokenizer(folder, parsed.vocab_size)
    return folder


def merge(config: Json, changes: Json) -> Json:
    """Deep merge; a change of None keeps the key with None."""
    return config | {k: merge(config[k], v) if isinstance(v, dict) and k in config else v for k, v in changes.items()}


def tiny_config(kind: str) -> Json:
    """Small enough for float64 generations in a second, with everything that makes the three kinds differ."""
    second = kind == "voxcpm2"
    vae: Json = {"encoder_dim": 8, "encoder_rates": [2, 5], "latent_dim": 8, "sample_rate": 16000}
    vae |= {"decoder_dim": 32, "decoder_rates": [5, 2]}
    if second:
        vae |= {"decoder_rates": [5, 3, 2], "out_sample_rate": 48000, "sr_bin_boundaries": [20000, 30000, 40000]}
    elif kind == "voxcpm1.5":
        vae |= {"encoder_rates": [3, 4], "decoder_rates": [4, 3], "sample_rate": 44100}
    local: Json = {"ffn_dim": 64, "num_heads": 4, "num_layers": 2, "kv_channels": 16 if second else 8}
    config: Json = {
        "architecture": "voxcpm2" if second else "voxcpm",
        "lm_config": _lm(hidden=32, heads=4, layers=3, vocab=512, head_dim=16 if second else 8),
        "patch_size": 2 if kind == "voxcpm" else 4,
        "feat_dim": 8,
        "scalar_quantization_latent_dim": 16,
        "scalar_quantization_scale": 9,
        "residual_lm_num_layers": 2,
        "encoder_config": {**local, "hidden_dim": 24},
        "dit_config": {**local, "hidden_dim": 32, "cfm_config": {}},
        "audio_vae_config": vae,
        "max_length": 512,
        "device": "cpu",
        "dtype": "float32",
    }
    return config | ({"residual_lm_no_rope": True} if second else {})


def full_config(size: str) -> Json:
    """The published sizes. Source: the checkpoints' own config files for 0.5B and 2; ports' for 1.5."""
    second, half = size == "2", size == "0.5b"
    wide: Json = {"hidden_dim": 1024, "ffn_dim": 4096, "num_heads": 16, "num_layers": 4 if half else 12 if second else 8}
    wide["kv_channels"] = 128 if second else 64
    hidden = 2048 if second else 1024
    config: Json = {
        "architecture": "voxcpm2" if second else "voxcpm",
        "lm_config": _lm(hidden=hidden, heads=16, layers=28 if second else 24, vocab=73448, head_dim=128 if second else 64),
        "patch_size": 2 if half else 4,
        "feat_dim": 64,
        "scalar_quantization_latent_dim": 512 if second else 256,
        "scalar_quantization_scale": 9,
        "residual_lm_num_layers": 6 if half else 8,
        "encoder_config": wide,
        "dit_config": {**wide, "cfm_config": {}},
        "max_length": 8192 if second else 4096,
        "device": "cpu",
        "dtype": "bfloat16",
    }
    if size == "1.5":
        config["audio_vae_config"] = {"sample_rate": 44100, "encoder_rates": [2, 3, 6, 7, 7], "decoder_rates": [7, 7, 6, 3, 2]}
        config["audio_vae_config"] |= {"encoder_dim": 64, "decoder_dim": 2048}
    return config | ({"residual_lm_no_rope": True} if second else {})


def _lm(*, hidden: int, heads: int, layers: int, vocab: int, head_dim: int) -> Json:
    half = head_dim // 2
    return {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": hidden,
        "intermediate_size": {2048: 6144, 1024: 4096}.get(hidden, 2 * hidden),
        "max_position_embeddings": 32768,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "kv_channels": head_dim,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": [1.0 + 0.05 * i for i in range(half)],
            "short_factor": [1.0 + 0.02 * i for i in range(half)],
            "original_max_position_embeddings": 32768,
        },
        "vocab_size": vocab,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    }


def _model_tensors(config: VoxConfig, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in VoxModel(config).named_parameters()}
    tensors = {}
    for raw, to in routes(shapes, config).items():
        shape = shapes[to.name] if to.stop is None else (to.stop - to.start, *shapes[to.name][1:])
        tensors[raw] = _random(raw, tuple(shape), generator).to(dtype)
    return tensors


def _vae_tensors(config: VoxConfig, generator: torch.Generator) -> dict[str, Tensor]:
    tensors = {raw: _random(raw, shape, generator) for raw, shape in raw_vae_shapes(config.vae).items()}
    if config.vae.rate_boundaries is not None:
        tensors["decoder.sr_bin_boundaries"] = torch.tensor(config.vae.rate_boundaries, dtype=torch.int32)
    return tensors


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values that keep activations near unit scale: norms near 1, slopes positive, matrices by their fan-in, and residual
    convolutions below 1 so that a deep VAE does not saturate."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("weight_g"):
        return 0.5 + 0.05 * noise.clamp(-3, 3)
    if name.endswith(("layernorm.weight", "norm.weight", "alpha", "scale_embed.weight")):
        return 1 + 0.1 * noise.clamp(-3, 3)
    if name.endswith(("bias", "special_token")) or "embed" in name or len(shape) == 1:
        return 0.1 * noise
    return noise / math.sqrt(math.prod(shape[1:]))


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A Llama-layout BPE: the special ids in place, bytes, ASCII, two words, Chinese characters and multi-character tokens."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{i:02X}>": 200 + i for i in range(256)}
    vocab |= {"<|audio_start|>": 101, "<|audio_end|>": 102, "<|reference_start|>": 103, "<|reference_end|>": 104}
    pieces = ["▁", *map(chr, range(33, 127)), *"你好世界语音合成", "你好", "世界", "▁th", "he", "▁the", "▁he"]
    free = iter([i for i in range(3, vocab_size) if i not in set(vocab.values())])
    vocab |= {piece: next(free) for piece in pieces if piece not in vocab}
    merges = [("你", "好"), ("世", "界"), ("▁", "th"), ("h", "e"), ("▁", "he"), ("▁th", "e")]
    vocab |= {piece: next(free) for piece in ("th",)}
    model = models.BPE(vocab=vocab, merges=[("t", "h"), *merges], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    main()
