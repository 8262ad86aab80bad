"""What a caller asks for and what comes back: the two ends of the pipeline, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Priority = Literal["live", "batch"]
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class RawAudio:
    """Samples in memory: float32 mono `[samples]` in [-1, 1] at `sample_rate`."""

    samples: NDArray[np.float32]
    sample_rate: int


@dataclass(frozen=True, slots=True)
class ClipLatents:
    """A clip that has been encoded already: float32 `[patches, patch_size, latent_dim]` and a digest of what it was made from."""

    latents: NDArray[np.float32]
    digest: bytes


ClipSource = Union[str, Path, bytes, RawAudio, ClipLatents]
"""A path, the bytes of an audio file, samples, or latents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """One utterance. `None` means the default that the model or the settings give.

    `timesteps` and `cfg` are the solver's; `max_seconds` caps the audio besides the cap that the text's length gives;
    `timeout` is in seconds from submission; a `live` request is scheduled by its listener's buffer, a `batch` one ages.
    """

    text: str
    reference: ClipSource | None = None
    prompt: ClipSource | None = None
    prompt_text: str | None = None
    instructions: str | None = None
    seed: int | None = None
    timesteps: int | None = None
    cfg: float = 2.0
    temperature: float = 1.0
    min_patches: int = 2
    max_seconds: float | None = None
    adapter: str | None = None
    tenant: str = ""
    priority: Priority = "live"
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """The numbers that steer generation, all decided: nothing here is optional.

    A stop is honoured once more than `min_patches` patches came before; `max_patches` ends the utterance with `length`.
    """

    seed: int
    timesteps: int
    cfg: float
    temperature: float
    min_patches: int
    max_patches: int


@dataclass(frozen=True, slots=True)
class Finish:
    """How an utterance ended, on its last chunk."""

    reason: FinishReason
    seed: int
    num_patches: int
    prompt_slots: int
    cached_slots: int = 0


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """Consecutive audio of one utterance: `samples` float32 mono, owned by the chunk.

    `start` counts samples from the utterance's first. `finish` is set on the last chunk only.
    """

    samples: NDArray[np.float32]
    start: int
    sample_rate: int
    finish: Finish | None = None
