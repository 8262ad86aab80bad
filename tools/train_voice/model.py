"""VoxCPM2 at a tiny size, arranged for training: encoder and DiT run on the patches that matter only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Stack, StackShape

PATCH = 4
PHONEMES = 178  # the teacher's alphabet
FSQ_SCALE = 9


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the parts."""

    vocabulary: int
    latent: int
    lm: StackShape = field(default_factory=lambda: StackShape(layers=5, hidden=256, ffn=512, heads=8))
    residual: StackShape = field(default_factory=lambda: StackShape(layers=1, hidden=256, ffn=512, heads=8, rope=False))
    encoder: StackShape = field(default_factory=lambda: StackShape(layers=1, hidden=128, ffn=256, heads=4))
    dit: StackShape = field(default_factory=lambda: StackShape(layers=3, hidden=192, ffn=512, heads=4))
    fsq: int = 128


class LocalEncoder(nn.Module):
    """A patch [n, PATCH, latent] to one vector [n, hidden]."""

    def __init__(self, shape: StackShape, latent: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.randn(1, 1, 1, shape.hidden) * 0.5)
        self.in_proj = nn.Linear(latent, shape.hidden)
        self.encoder = Stack(shape)

    def forward(self, patches: Tensor) -> Tensor:
        lead = self.special_token[0].expand(len(patches), 1, -1)
        x = torch.cat((lead, self.in_proj(patches)), 1)
        return self.encoder(x, torch.arange(PATCH + 1), None)[0][:, 0]


class TimeMLP(nn.Module):
    """Two linear layers around SiLU."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class DiT(nn.Module):
    """Velocity of a noisy patch given two mu tokens, the time and the patch before."""

    def __init__(self, shape: StackShape, latent: int) -> None:
        super().__init__()
        self.hidden = shape.hidden
        self.in_proj, self.cond_proj = nn.Linear(latent, shape.hidden), nn.Linear(latent, shape.hidden)
        self.out_proj = nn.Linear(shape.hidden, latent)
        self.time_mlp, self.delta_time_mlp = TimeMLP(shape.hidden), TimeMLP(shape.hidden)
        self.decoder = Stack(shape)

    def embed_time(self, t: Tensor) -> Tensor:
        """Sinusoids of 1000 t, [n] to [n, hidden]."""
        half = self.hidden // 2
        rates = torch.exp(torch.arange(half) * (-math.log(10_000) / (half - 1)))
        angles = 1000 * t[:, None] * rates
        return torch.cat((angles.sin(), angles.cos()), -1)

    def forward(self, x: Tensor, mu: Tensor, t: Tensor, before: Tensor) -> Tensor:
        """x, before: [n, PATCH, latent]; mu: [n, 2, hidden]; t: [n]."""
        time = self.time_mlp(self.embed_time(t)) + self.delta_time_mlp(self.embed_time(torch.zeros_like(t)))
        sequence = torch.cat((mu, time[:, None], self.cond_proj(before), self.in_proj(x)), 1)
        hidden = self.decoder(sequence, torch.arange(sequence.shape[1]), None)[0]
        return self.out_proj(hidden[:, -PATCH:])


class Quantizer(nn.Module):
    """Finite scalar quantisation, straight through."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(hidden, inner), nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        bounded = torch.tanh(self.in_proj(x).float())
        rounded = torch.round(bounded * FSQ_SCALE) / FSQ_SCALE
        return self.out_proj(bounded + (rounded - bounded).detach())


class Voice(nn.Module):
    """The whole but the codec; `aux_*` are heads for training alone, dropped on export."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, inner = shape.lm.hidden, shape.dit.hidden
        self.base_lm, self.residual_lm = Stack(shape.lm), Stack(shape.residual)
        self.base_lm.embed_tokens = nn.Embedding(shape.vocabulary, hidden)
        self.feat_encoder = LocalEncoder(shape.encoder, shape.latent)
        self.feat_decoder = nn.ModuleDict({"estimator": DiT(shape.dit, shape.latent)})
        self.fsq_layer = Quantizer(hidden, shape.fsq)
        self.enc_to_lm_proj = nn.Linear(shape.encoder.hidden, hidden)
        self.lm_to_dit_proj, self.res_to_dit_proj = nn.Linear(hidden, inner), nn.Linear(hidden, inner)
        self.fusion_concat_proj = nn.Linear(2 * hidden, hidden)
        self.stop_proj, self.stop_head = nn.Linear(hidden, hidden), nn.Linear(hidden, 2, bias=False)
        self.aux_phonemes = nn.Linear(hidden, PATCH * PHONEMES)
        self.aux_latents = nn.Linear(2 * hidden, PATCH * shape.latent)
        self.apply(_initialise)
        for stack in (self.base_lm, self.residual_lm, self.feat_encoder.encoder, self.dit.decoder):
            for layer in stack.layers:
                for last in (layer.self_attn.o_proj, layer.mlp["down_proj"]):
                    nn.init.normal_(last.weight, std=last.in_features**-0.5 / math.sqrt(2 * len(stack.layers)))
        nn.init.zeros_(self.dit.out_proj.weight)

    @property
    def dit(self) -> DiT:
        """The flow's estimator."""
        return self.feat_decoder["estimator"]  # type: ignore[return-value]

    def embed_patches(self, patches: Tensor) -> Tensor:
        """Patches [n, PATCH, latent] to LM inputs [n, hidden]."""
        return self.enc_to_lm_proj(self.feat_encoder(patches))

    def fuse(self, hidden: Tensor, patches: Tensor) -> Tensor:
        """The residual LM's input from the LM's (quantised) output and the patch embedding (zero at text slots)."""
        return self.fusion_concat_proj(torch.cat((hidden, patches.to(hidden.dtype)), -1))

    def mu(self, hidden: Tensor, residual: Tensor) -> Tensor:
        """The DiT's two condition tokens [n, 2, inner]."""
        return torch.stack((self.lm_to_dit_proj(hidden), self.res_to_dit_proj(residual)), 1)

    def stop_logits(self, hidden: Tensor) -> Tensor:
        """[n, 2]: go on, stop."""
        return self.stop_head(F.silu(self.stop_proj(hidden)))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.5)
