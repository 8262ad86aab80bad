"""What the voice learns from: the flow, the stop, and three teachers that are dropped on export.

The helpers give the language model a dense gradient for *where in the text it is*, which the flow alone teaches very slowly:
which phonemes come in the next patch, a plain regression of that patch, and head 0 of two middle layers looking at the text token
that is about to be spoken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .model import PHONEMES, Voice

if TYPE_CHECKING:
    from .batches import Batch

GUIDED_LAYERS = (2, 3)
WEIGHTS = {"flow": 1.0, "stop": 0.3, "phonemes": 0.3, "pointer": 0.3, "regression": 0.3}
CFG_DROP = 0.1


def losses(voice: Voice, batch: Batch) -> dict[str, Tensor]:
    """Each loss, unweighted; random numbers come from torch's default generator."""
    rows, slots = batch.tokens.shape
    heard = batch.patches + batch.noise[:, None, None] * torch.randn_like(batch.patches)
    embedded = voice.embed_patches(heard).float()
    audio = embedded.new_zeros(rows * slots + 1, embedded.shape[1]).index_copy(0, batch.slot, embedded)[:-1].view(rows, slots, -1)
    text = voice.base_lm.embed_tokens(batch.tokens) * batch.is_text[..., None]
    raw, scores = voice.base_lm(text + audio, batch.positions, batch.bias)
    is_audio = batch.is_audio[..., None]
    hidden = voice.fsq_layer(raw).float() * is_audio + raw * batch.is_text[..., None]
    residual, _ = voice.residual_lm(voice.fuse(hidden, audio), batch.positions, batch.bias)
    conditioning = (batch.slot - 1).clamp(max=rows * slots - 1)
    h, r = hidden.flatten(0, 1)[conditioning], residual.flatten(0, 1)[conditioning]
    count = batch.weight.sum()
    phonemes = F.cross_entropy(voice.aux_phonemes(h).float().reshape(-1, PHONEMES), batch.phonemes.flatten(), reduction="none")
    regression = (voice.aux_latents(torch.cat((h, r), -1)).float().view_as(batch.patches) - batch.patches).square().mean((1, 2))
    stop = F.cross_entropy(voice.stop_logits(h).float(), batch.stop, reduction="none")
    looking = sum(-(batch.pointer * scores[layer].log_softmax(-1).clamp(min=-30)).sum() for layer in GUIDED_LAYERS)
    return {
        "flow": _flow(voice, batch, heard, h, r),
        "stop": (stop * batch.weight).sum() / count,
        "phonemes": (phonemes.view(len(h), -1).mean(1) * batch.weight).sum() / count,
        "pointer": looking / (count * len(GUIDED_LAYERS)),
        "regression": (regression * batch.weight).sum() / count,
    }


def _flow(voice: Voice, batch: Batch, heard: Tensor, h: Tensor, r: Tensor) -> Tensor:
    """Mean squared error of the velocity at the chosen patches, the previous patch as noisy as the language model heard it."""
    chosen = batch.chosen
    target = batch.patches[chosen]
    before = torch.cat((heard, torch.zeros_like(heard[:1])))[batch.before[chosen]]
    keep = (torch.rand(len(chosen), 1, 1) > CFG_DROP).float()
    t = torch.sigmoid(torch.randn(len(chosen)) - 0.4)
    z = torch.randn_like(target)
    noisy = (1 - t)[:, None, None] * target + t[:, None, None] * z
    velocity = voice.dit(noisy, voice.mu(h[chosen], r[chosen]) * keep, t, before)
    return (velocity.float() - (z - target)).square().mean()


def total(parts: dict[str, Tensor]) -> Tensor:
    """The weighted sum."""
    return sum((WEIGHTS[name] * value for name, value in parts.items()), torch.zeros(()))
