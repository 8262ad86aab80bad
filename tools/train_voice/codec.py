"""The audio codec of the voice: the reference package's AudioVAE V2 at a small size (a dependency of this tool only)."""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file

if TYPE_CHECKING:
    from pathlib import Path

    import torch

CONFIG: dict[str, Any] = {
    "encoder_dim": 16,
    "encoder_rates": [4, 4, 4, 5],
    "latent_dim": 32,
    "decoder_dim": 256,
    "decoder_rates": [5, 4, 4, 4],
    "depthwise": True,
    "sample_rate": 16000,
    "out_sample_rate": 16000,
    "sr_bin_boundaries": None,
}
LATENT, HOP, SAMPLE_RATE = 32, 320, 16_000


def reference_module(name: str) -> Any:
    """Imports a module of the installed reference package without running the package's own heavy `__init__`."""
    if "voxcpm" not in sys.modules:
        spec = importlib.util.find_spec("voxcpm")  # type: ignore[attr-defined]
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("the reference package is missing: pip install --no-deps voxcpm==2.0.3")
        package = types.ModuleType("voxcpm")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["voxcpm"] = package
        for absent in ("torchaudio", "librosa"):
            if importlib.util.find_spec(absent) is None:  # type: ignore[attr-defined]
                sys.modules[absent] = types.ModuleType(absent)
        model = types.ModuleType("voxcpm.model")
        model.__path__ = [f"{package.__path__[0]}/model"]
        sys.modules["voxcpm.model"] = model
    return importlib.import_module(name)


def new_codec(latent: int = LATENT) -> torch.nn.Module:
    """An untrained codec."""
    vae = reference_module("voxcpm.modules.audiovae.audio_vae_v2")
    return vae.AudioVAE(vae.AudioVAEConfig(**{**CONFIG, "latent_dim": latent}))  # type: ignore[no-any-return]


def load_codec(path: Path) -> torch.nn.Module:
    """A trained codec in inference mode; strict about its keys."""
    state = load_file(path)
    codec = new_codec(len(state["encoder.fc_mu.bias"]))
    codec.load_state_dict(state)
    return codec.eval().requires_grad_(False)
