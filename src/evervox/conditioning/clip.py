"""A clip as the caller gives it -> a clip as the encoder takes it, and the digest that names its content."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from evervox.conditioning.decode import MAX_RATE, MIN_RATE, decode, resample
from evervox.conditioning.layout import PromptClip
from evervox.errors import BadRequest, NotFound, TooLarge
from evervox.request import ClipLatents, RawAudio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evervox.conditioning.limits import Limits
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.request import ClipSource

Side = Literal["left", "right"]
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ClipLoader:
    """Prepares clips for one model under the limits."""

    config: VoxConfig
    limits: Limits

    def load(self, source: ClipSource, *, field: str, side: Side) -> PromptClip:
        """Pad to whole patches on `side`. Raises `BadRequest`, `NotFound` or `TooLarge` naming `field`."""
        if isinstance(source, ClipLatents):
            return self._encoded(source, field)
        samples, rate = self._samples(source, field)
        ready = resample(samples, rate, self.config.vae.encoder_sample_rate)
        return self._pad(ready, side)

    def _samples(self, source: object, field: str) -> tuple[NDArray[np.float32], int]:
        if isinstance(source, RawAudio):
            return self._raw(source, field)
        if isinstance(source, (str, Path)):
            source = self._read(Path(source).expanduser(), field)
        if not isinstance(source, bytes):
            raise BadRequest(f"must be a path, the bytes of a file, samples or latents, not {type(source).__name__}", field=field)
        self._check_bytes(len(source), field)
        return decode(source, field=field, max_seconds=self.limits.clip_seconds)

    def _read(self, path: Path, field: str) -> bytes:
        try:
            self._check_bytes(path.stat().st_size, field)
            return path.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"there is no file {path}", field=field) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadRequest(f"cannot read {path}: {reason}", field=field) from None

    def _check_bytes(self, size: int, field: str) -> None:
        if size == 0:
            raise BadRequest("the file is empty", field=field)
        if size > self.limits.clip_bytes:
            raise TooLarge(f"the file has {size:,} bytes; the limit is {self.limits.clip_bytes:,}", field=field)

    def _raw(self, audio: RawAudio, field: str) -> tuple[NDArray[np.float32], int]:
        samples, rate = np.asarray(audio.samples), audio.sample_rate
        if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
            raise BadRequest(f"samples must be floats of shape [samples], not {samples.dtype} {samples.shape}", field=field)
        if not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
            raise BadRequest(f"sample_rate must be {MIN_RATE} to {MAX_RATE} Hz, not {rate!r}", field=field)
        if not len(samples):
            raise BadRequest("the clip has no samples", field=field)
        if len(samples) > self.limits.clip_seconds * rate:
            raise TooLarge(f"the clip is longer than {self.limits.clip_seconds:g} seconds", field=field)
        if not np.isfinite(samples).all():
            raise BadRequest("samples must be finite", field=field)
        return samples.astype(np.float32), rate

    def _pad(self, samples: NDArray[np.float32], side: Side) -> PromptClip:
        per_patch = self.config.encoder_samples_per_patch
        missing = -len(samples) % per_patch
        padded = np.pad(samples, (missing, 0) if side == "left" else (0, missing))
        return PromptClip(
            digest=digest_of(b"samples %d" % self.config.vae.encoder_sample_rate, padded),
            num_patches=len(padded) // per_patch,
            samples=padded,
        )

    def _encoded(self, clip: ClipLatents, field: str) -> PromptClip:
        """The digest is made of the latents themselves: what a caller says about them must not name shared memory."""
        shape = ("patches", self.config.patch_size, self.config.latent_dim)
        latents = np.asarray(clip.latents)
        if latents.ndim != 3 or latents.shape[1:] != shape[1:] or not np.issubdtype(latents.dtype, np.floating):
            wanted = ", ".join(map(str, shape))
            raise BadRequest(f"latents must be floats of shape [{wanted}], not {latents.dtype} {latents.shape}", field=field)
        if not len(latents):
            raise BadRequest("latents hold no patches", field=field)
        if len(latents) * self.config.patch_seconds > self.limits.clip_seconds:
            raise TooLarge(f"the clip is longer than {self.limits.clip_seconds:g} seconds", field=field)
        if not np.isfinite(latents).all():
            raise BadRequest("latents must be finite", field=field)
        owned = latents.astype(np.float32)
        owned.setflags(write=False)
        return PromptClip(digest=digest_of(b"latents", owned), num_patches=len(owned), latents=owned)


def digest_of(kind: bytes, array: NDArray[np.float32]) -> bytes:
    """128 bits that name what the array holds."""
    made = blake2b(digest_size=DIGEST_BYTES, person=b"evervox.clip")
    made.update(len(kind).to_bytes(4, "big") + kind)
    made.update(np.ascontiguousarray(array).data)
    return made.digest()
