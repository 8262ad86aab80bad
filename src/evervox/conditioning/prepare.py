"""A request checked and laid out: the border at which every rule about text, clips and numbers is applied, once."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from evervox.conditioning import checks
from evervox.conditioning.clip import ClipLoader
from evervox.conditioning.layout import lay_out
from evervox.conditioning.limits import Limits
from evervox.conditioning.text import collapse
from evervox.core.keys import clip_key, text_key
from evervox.errors import BadRequest, TooLarge, Unsupported
from evervox.models.voxcpm.config import MAX_TIMESTEPS
from evervox.request import Sampling

if TYPE_CHECKING:
    from evervox.conditioning.clip import Side
    from evervox.conditioning.clips import ClipCache
    from evervox.conditioning.layout import Prompt, PromptClip
    from evervox.conditioning.text import TextTokenizer
    from evervox.core.keys import SlotKey
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.request import ClipSource, SpeechRequest

MAX_SEED = 2**63 - 1
DRAWN_SEEDS = 2**32
"""A seed that nobody gave stays short enough to read out and to pass through JSON."""
PATCHES_PER_TOKEN, PATCHES_EXTRA = 6, 10
"""The reference's cap on an utterance's length."""
MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be generated as it stands."""

    prompt: Prompt
    sampling: Sampling


class Preparer:
    """Prepares requests for one model. Holds nothing that grows; safe to share between threads."""

    def __init__(
        self, config: VoxConfig, tokenizer: TextTokenizer, limits: Limits | None = None, clips: ClipCache | None = None
    ) -> None:
        """`clips`: where encoded clips are looked up by digest before the model is asked to encode."""
        self.config = config
        self.tokenizer = tokenizer
        self.limits = limits or Limits()
        self.clips = clips
        self._loader = ClipLoader(config, self.limits)

    def prepare(self, request: SpeechRequest) -> Prepared:
        """Raises `BadRequest`, `TooLarge`, `NotFound` or `Unsupported`, naming the field and the limit."""
        self._check_service(request)
        self._check_modes(request)
        prompt = self._lay_out(request)
        return Prepared(prompt, self._sampling(request, prompt))

    def _check_service(self, request: SpeechRequest) -> None:
        if request.adapter is not None:
            checks.text(request.adapter, "adapter", MAX_NAME)
        if request.tenant != "":
            checks.text(request.tenant, "tenant", MAX_NAME)
        if request.timeout is not None:
            checks.number(request.timeout, "timeout", 0, above=True)
        if request.priority not in ("live", "batch"):
            raise BadRequest(f"must be 'live' or 'batch', not {request.priority!r}", field="priority")

    def _check_modes(self, request: SpeechRequest) -> None:
        """Which inputs go together, and which this model has."""
        if request.prompt is not None and request.prompt_text is None:
            raise BadRequest("needs prompt_text, the words spoken in the clip", field="prompt")
        if request.prompt_text is not None and request.prompt is None:
            raise BadRequest("needs prompt, the clip in which it is spoken", field="prompt_text")
        if request.reference is not None and not self.config.has_reference:
            raise Unsupported(f"{self.config.name} takes no reference clip; use prompt with prompt_text", field="reference")
        if request.instructions is not None and not self.config.has_reference:
            raise Unsupported(f"{self.config.name} follows no instructions; VoxCPM2 does", field="instructions")
        if request.instructions is not None and request.prompt is not None:
            raise Unsupported("a prompt clip sets the style, and instructions have no effect on it", field="instructions")

    def _lay_out(self, request: SpeechRequest) -> Prompt:
        target = self._target(request)
        spoken = "" if request.prompt_text is None else checks.text(request.prompt_text, "prompt_text", self.limits.text)
        target_ids = self._ids(target, "text")
        return lay_out(
            self._ids(spoken + target, "prompt_text") if spoken else target_ids,
            len(target_ids),
            reference=self._clip(request.reference, "reference", "right"),
            prompt=self._clip(request.prompt, "prompt", "left"),
            max_context=self.config.context_patches,
        )

    def _target(self, request: SpeechRequest) -> str:
        """The text to speak, its style in leading parentheses."""
        text = collapse(checks.text(request.text, "text", self.limits.text))
        if request.instructions is None:
            return text
        style = collapse(checks.text(request.instructions, "instructions", self.limits.text)).strip()
        return f"({style}){text}"

    def _ids(self, text: str, field: str) -> list[int]:
        ids = self.tokenizer.ids(text, field=field)
        beyond = max(ids, default=0)
        if beyond >= self.config.vocab_size:  # an index past the embedding would take the device down
            raise BadRequest(f"holds token {beyond}; the model knows {self.config.vocab_size} tokens", field=field)
        if not ids:
            raise BadRequest("holds nothing that the tokenizer knows", field=field)
        return ids

    def _clip(self, source: ClipSource | None, field: str, side: Side) -> PromptClip | None:
        if source is None:
            return None
        clip = self._loader.load(source, field=field, side=side)
        known = self.clips.get(clip.digest) if self.clips is not None and clip.latents is None else None
        return clip if known is None else replace(clip, samples=None, latents=known)

    def _sampling(self, request: SpeechRequest, prompt: Prompt) -> Sampling:
        seed = request.seed
        timesteps = self.config.timesteps if request.timesteps is None else request.timesteps
        why = " (the solver's first step contributes zero, so one step alone is noise)" if timesteps in (0, 1) else ""
        return Sampling(
            seed=secrets.randbelow(DRAWN_SEEDS) if seed is None else checks.integer(seed, "seed", 0, MAX_SEED),
            timesteps=checks.integer(timesteps, "timesteps", 2, MAX_TIMESTEPS, why),
            cfg=checks.number(request.cfg, "cfg", 0, 10),
            temperature=checks.number(request.temperature, "temperature", 0, 2),
            min_patches=checks.integer(request.min_patches, "min_patches", 0, self.config.max_length),
            max_patches=self._max_patches(request, prompt),
        )

    def _max_patches(self, request: SpeechRequest, prompt: Prompt) -> int:
        room = self.config.max_length - prompt.num_slots
        if room < 1:
            raise TooLarge(
                f"text and clips take {prompt.num_slots:,} slots (a token or {self.config.patch_seconds:g} s of clip each); "
                f"the model has {self.config.max_length:,} (max_length), the speech included",
                field="text",
            )
        cap = min(room, PATCHES_PER_TOKEN * prompt.target_tokens + PATCHES_EXTRA)
        if request.max_seconds is None:
            return cap
        seconds = checks.number(request.max_seconds, "max_seconds", 0, above=True)
        return max(1, min(cap, int(seconds / self.config.patch_seconds)))


def slot_keys(prompt: Prompt) -> list[SlotKey]:
    """What each slot is, in order: a token, or a patch of one of the clips."""
    patches = iter([clip_key(clip.digest, patch) for clip in prompt.clips for patch in range(clip.num_patches)])
    slots = zip(prompt.tokens.tolist(), prompt.is_audio.tolist(), strict=True)
    return [next(patches) if is_audio else text_key(token) for token, is_audio in slots]
