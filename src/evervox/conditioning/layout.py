"""The order of slots that the model sees: four layouts of text, reference clip and prompt clip.

Layouts (source: the `voxcpm` package): zero-shot `text 101`; continuation `prompt_text+text 101 prompt`; reference
`103 ref 104 text 101`; both `103 ref 104 prompt_text+text 101 prompt`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

AUDIO_START = 101
AUDIO_END = 102
REFERENCE_START = 103
REFERENCE_END = 104


@dataclass(frozen=True, slots=True)
class PromptClip:
    """A clip ready for the encoder, or encoded already.

    `samples` float32 `[num_patches * samples_per_patch]` at the encoder's rate, padded to whole patches (a prompt on the left, a
    reference on the right); or `latents` float32 `[num_patches, patch_size, latent_dim]`. `digest` names the content.
    """

    digest: bytes
    num_patches: int
    samples: NDArray[np.float32] | None = None
    latents: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a sequence starts from.

    `tokens` int32 `[slots]`, 0 where a slot is audio; `is_audio` bool `[slots]`; the audio slots hold the patches of `clips` in
    order. `context_patches`: how many of the last audio patches the decoder is fed before the first generated one (0 unless the
    prompt ends with audio). `target_tokens`: text tokens of the target text alone, for the length cap.
    """

    tokens: NDArray[np.int32]
    is_audio: NDArray[np.bool_]
    clips: tuple[PromptClip, ...]
    target_tokens: int
    context_patches: int

    @property
    def num_slots(self) -> int:
        return len(self.tokens)


def lay_out(
    text: list[int],
    target_tokens: int,
    *,
    reference: PromptClip | None = None,
    prompt: PromptClip | None = None,
    max_context: int = 3,
) -> Prompt:
    """Arrange token ids of `prompt_text + text` and the clips into one prompt."""
    parts: list[tuple[list[int], int]] = []
    if reference is not None:
        parts += [([REFERENCE_START], 0), ([], reference.num_patches), ([REFERENCE_END], 0)]
    parts.append(([*text, AUDIO_START], 0))
    if prompt is not None:
        parts.append(([], prompt.num_patches))
    tokens = [t for ids, patches in parts for t in (ids or [0] * patches)]
    audio = [not ids for ids, patches in parts for _ in (ids or [0] * patches)]
    clips = tuple(c for c in (reference, prompt) if c is not None)
    return Prompt(
        tokens=np.asarray(tokens, dtype=np.int32),
        is_audio=np.asarray(audio, dtype=np.bool_),
        clips=clips,
        target_tokens=target_tokens,
        context_patches=0 if prompt is None else min(max_context, sum(c.num_patches for c in clips)),
    )
