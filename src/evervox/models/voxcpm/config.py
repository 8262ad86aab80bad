"""What a VoxCPM checkpoint is, read once from its `config.json`. Every difference between 0.5B, 1.5 and 2 is a field here.

Imports no torch: the HTTP process and the prompt rules need these numbers too. Source: the `voxcpm` package's config classes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from evervox.errors import CheckpointError

MAX_TIMESTEPS, DEFAULT_TIMESTEPS = 100, 10


class Fusion(Enum):
    """How the residual LM's input joins the LM's output and the patch embedding."""

    ADD = "add"
    CONCAT = "concat"


class Conditioning(Enum):
    """How the DiT sees `mu` and the time: one summed token, or the tokens of `mu` and then the time token."""

    SUMMED = "summed"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Long RoPE: per-frequency factors, the short ones up to the original length."""

    theta: float
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    max_positions: int
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """One MiniCPM4 stack. `rope` None means positions are not encoded; `residual_scale` multiplies each branch."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    residual_scale: float
    rope: RopeConfig | None


@dataclass(frozen=True, slots=True)
class VaeConfig:
    """AudioVAE. `rate_boundaries` None: the decoder is not conditioned on the output rate. `trim_odd_strides`: V2's padding."""

    encoder_dim: int
    encoder_rates: tuple[int, ...]
    latent_dim: int
    decoder_dim: int
    decoder_rates: tuple[int, ...]
    depthwise: bool
    encoder_sample_rate: int
    sample_rate: int
    rate_boundaries: tuple[int, ...] | None
    rate_conditioning: str
    trim_odd_strides: bool

    @property
    def encoder_hop(self) -> int:
        """Samples per latent frame going in."""
        return math.prod(self.encoder_rates)

    @property
    def decoder_hop(self) -> int:
        """Samples per latent frame coming out."""
        return math.prod(self.decoder_rates)


@dataclass(frozen=True, slots=True)
class VoxConfig:
    """A whole checkpoint."""

    name: str
    vocab_size: int
    embedding_scale: float
    patch_size: int
    latent_dim: int
    fsq_dim: int
    fsq_scale: int
    lm: TransformerConfig
    residual: TransformerConfig
    encoder: TransformerConfig
    dit: TransformerConfig
    mean_mode: bool
    fusion: Fusion
    conditioning: Conditioning
    has_reference: bool
    max_length: int
    context_patches: int
    vae: VaeConfig
    timesteps: int = DEFAULT_TIMESTEPS

    @property
    def samples_per_patch(self) -> int:
        """Output samples that one patch decodes to."""
        return self.patch_size * self.vae.decoder_hop

    @property
    def encoder_samples_per_patch(self) -> int:
        """Input samples that one patch is encoded from."""
        return self.patch_size * self.vae.encoder_hop

    @property
    def patch_seconds(self) -> float:
        return self.samples_per_patch / self.vae.sample_rate

    @property
    def sample_rate(self) -> int:
        return self.vae.sample_rate

    @classmethod
    def from_checkpoint(cls, folder: str | Path) -> VoxConfig:
        """Read `folder/config.json`, and `inference_timesteps` of `generation_config.json` if there is one.

        Raises `CheckpointError` naming what is missing or unknown.
        """
        path = Path(folder) / "config.json"
        if not path.exists():
            raise CheckpointError(f"{path} does not exist: is {folder} a VoxCPM checkpoint folder?")
        raw = _object(path)
        architecture = raw.get("architecture", "voxcpm")
        if architecture not in ("voxcpm", "voxcpm2"):
            raise CheckpointError(f"{path}: architecture {architecture!r} is unknown; known are 'voxcpm' and 'voxcpm2'")
        try:
            return replace(_parse(raw, second=architecture == "voxcpm2"), timesteps=_timesteps(Path(folder)))
        except KeyError as error:
            raise CheckpointError(f"{path}: field {error.args[0]!r} is missing") from None
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return raw


def _timesteps(folder: Path) -> int:
    path = folder / "generation_config.json"
    timesteps = _object(path).get("inference_timesteps", DEFAULT_TIMESTEPS) if path.exists() else DEFAULT_TIMESTEPS
    if type(timesteps) is not int or not 2 <= timesteps <= MAX_TIMESTEPS:
        raise CheckpointError(f"{path}: inference_timesteps must be 2 to {MAX_TIMESTEPS}, not {timesteps!r}")
    return timesteps


def _parse(raw: dict[str, Any], *, second: bool) -> VoxConfig:
    lm = raw["lm_config"]
    residual = {**lm, "num_hidden_layers": raw.get("residual_lm_num_layers", 8 if second else 6)}
    no_rope = second and bool(raw.get("residual_lm_no_rope", False))
    dit = raw["dit_config"]
    return VoxConfig(
        name="VoxCPM2" if second else "VoxCPM",
        vocab_size=int(lm["vocab_size"]),
        embedding_scale=float(lm["scale_emb"]) if lm.get("use_mup", True) else 1.0,
        patch_size=int(raw.get("patch_size", 4 if second else 2)),
        latent_dim=int(raw.get("feat_dim", 64)),
        fsq_dim=int(raw.get("scalar_quantization_latent_dim", 512 if second else 256)),
        fsq_scale=int(raw.get("scalar_quantization_scale", 9)),
        lm=_transformer(lm, rope=not lm.get("no_rope", False)),
        residual=_transformer(residual, rope=not no_rope),
        encoder=_local(lm, raw["encoder_config"]),
        dit=_local(lm, dit),
        mean_mode=bool((dit if second else raw).get("dit_mean_mode", False)),
        fusion=Fusion.CONCAT if second else Fusion.ADD,
        conditioning=Conditioning.TOKENS if second else Conditioning.SUMMED,
        has_reference=second,
        max_length=int(raw.get("max_length", 8192 if second else 4096)),
        context_patches=3 if second else 2,
        vae=_vae(raw.get("audio_vae_config") or {}, second=second),
    )


def _transformer(raw: dict[str, Any], *, rope: bool) -> TransformerConfig:
    layers, hidden, heads = int(raw["num_hidden_layers"]), int(raw["hidden_size"]), int(raw["num_attention_heads"])
    scaling, head_dim = raw["rope_scaling"], int(raw.get("kv_channels") or hidden // heads)
    for name in ("short_factor", "long_factor") if rope else ():
        if len(scaling[name]) != head_dim // 2:
            raise ValueError(f"rope_scaling.{name} has {len(scaling[name])} values; a head of {head_dim} needs {head_dim // 2}")
    return TransformerConfig(
        layers=layers,
        hidden=hidden,
        ffn=int(raw["intermediate_size"]),
        heads=heads,
        kv_heads=int(raw["num_key_value_heads"]),
        head_dim=head_dim,
        norm_eps=float(raw["rms_norm_eps"]),
        residual_scale=float(raw["scale_depth"]) / math.sqrt(layers) if raw.get("use_mup", True) else 1.0,
        rope=RopeConfig(
            theta=float(raw["rope_theta"]),
            short_factor=tuple(map(float, scaling["short_factor"])),
            long_factor=tuple(map(float, scaling["long_factor"])),
            max_positions=int(raw["max_position_embeddings"]),
            original_max_positions=int(scaling["original_max_position_embeddings"]),
        )
        if rope
        else None,
    )


def _local(lm: dict[str, Any], raw: dict[str, Any]) -> TransformerConfig:
    """The local encoder and the DiT take their own sizes, and everything else from the LM."""
    own = {
        "hidden_size": raw.get("hidden_dim", 1024),
        "intermediate_size": raw.get("ffn_dim", 4096),
        "num_attention_heads": raw.get("num_heads", 16),
        "num_hidden_layers": raw.get("num_layers", 4),
        "kv_channels": raw.get("kv_channels"),
    }
    return _transformer({**lm, **own}, rope=not lm.get("no_rope", False))


def _vae(raw: dict[str, Any], *, second: bool) -> VaeConfig:
    if raw.get("use_noise_block", False):
        raise ValueError("audio_vae_config.use_noise_block is true; a decoder that draws noise is not supported")
    sample_rate = int(raw.get("sample_rate", 16000))
    boundaries = raw.get("sr_bin_boundaries", [20000, 30000, 40000]) if second else None
    conditioning = str(raw.get("cond_type", "scale_bias"))
    if boundaries and (conditioning not in ("scale_bias", "scale_bias_init", "add") or raw.get("cond_out_layer", False)):
        raise ValueError(f"audio_vae_config.cond_type {conditioning!r} with cond_out_layer is not supported")
    return VaeConfig(
        encoder_dim=int(raw.get("encoder_dim", 128)),
        encoder_rates=tuple(raw.get("encoder_rates", [2, 5, 8, 8])),
        latent_dim=int(raw.get("latent_dim", 64)),
        decoder_dim=int(raw.get("decoder_dim", 2048 if second else 1536)),
        decoder_rates=tuple(raw.get("decoder_rates", [8, 6, 5, 2, 2, 2] if second else [8, 8, 5, 2])),
        depthwise=bool(raw.get("depthwise", True)),
        encoder_sample_rate=sample_rate,
        sample_rate=int(raw.get("out_sample_rate", 48000)) if second else sample_rate,
        rate_boundaries=tuple(boundaries) if boundaries else None,
        rate_conditioning=conditioning,
        trim_odd_strides=second,
    )
