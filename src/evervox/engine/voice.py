"""A voice to speak in: a clip or its latents, what is said in it, and a file to keep it in."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from evervox.errors import BadRequest, NotFound
from evervox.request import ClipLatents, RawAudio

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Voice:
    """`clip` is a clip's audio file as bytes, its samples, or latents. `digest` names it: equal digests are the same voice.

    With `transcript`, the words spoken in the clip, a model without reference clips can speak in it too.
    """

    clip: bytes | RawAudio | ClipLatents
    digest: bytes
    transcript: str | None = None

    @classmethod
    def from_clip(cls, clip: str | Path | bytes | RawAudio, transcript: str | None = None) -> Voice:
        """From an audio file, its bytes, or samples. The file is read now. Raises `NotFound`."""
        if isinstance(clip, (str, Path)):
            path = Path(clip).expanduser()
            if not path.is_file():
                raise NotFound(f"clip: there is no file {path}", field="clip")
            clip = path.read_bytes()
        return cls(clip, _digest(clip), transcript)

    @classmethod
    def from_latents(cls, latents: NDArray[np.floating[Any]], transcript: str | None = None) -> Voice:
        """From `[patches, patch_size, latent_dim]` latents, which fit the model that made them. Raises `BadRequest`."""
        if latents.ndim != 3 or not len(latents) or not np.isfinite(latents).all():
            raise BadRequest(f"must be finite, [patches, patch_size, latent_dim], not {latents.shape}", field="latents")
        own = latents.astype(np.float32)
        digest = blake2b(own.tobytes(), digest_size=16).digest()
        return cls(ClipLatents(own, digest), digest, transcript)

    @classmethod
    def load(cls, path: str | Path) -> Voice:
        """From a file that `save` wrote. Raises `NotFound`, and `BadRequest` for anything else or a damaged one."""
        file = Path(path).expanduser()
        if not file.is_file():
            raise NotFound(f"voice: there is no file {file}", field="voice")
        try:
            with safe_open(file, framework="numpy") as tensors:
                meta: dict[str, str] = tensors.metadata() or {}
                [kind] = tensors.keys()
                voice = _voice(cls, kind, tensors.get_tensor(kind), meta)
        except (SafetensorError, KeyError, ValueError) as error:
            raise BadRequest(f"{file} is not a voice: {error}", field="voice") from None
        if voice.digest.hex() != meta.get("digest"):
            raise BadRequest(f"{file} is damaged: its content does not have the digest that it names", field="voice")
        return voice

    def save(self, path: str | Path, **notes: str) -> None:
        """One safetensors file; `notes` go into its metadata."""
        meta = {**notes, "digest": self.digest.hex()} | ({} if self.transcript is None else {"transcript": self.transcript})
        if isinstance(self.clip, ClipLatents):
            tensors = {"latents": self.clip.latents}
        elif isinstance(self.clip, RawAudio):
            tensors = {"samples": self.clip.samples}
            meta["sample_rate"] = str(self.clip.sample_rate)
        else:
            tensors = {"clip": np.frombuffer(self.clip, np.uint8)}
        save_file(tensors, str(Path(path).expanduser()), meta)

    def fields(self, *, has_reference: bool) -> dict[str, Any]:
        """The fields of a `SpeechRequest` that speak in this voice. Raises `BadRequest` where the model needs a transcript."""
        if has_reference:
            return {"reference": self.clip}
        if self.transcript is None:
            raise BadRequest("needs a transcript: this model takes no reference, only a prompt with its words", field="voice")
        return {"prompt": self.clip, "prompt_text": self.transcript}


def _voice(cls: type[Voice], kind: str, tensor: NDArray[Any], meta: dict[str, str]) -> Voice:
    transcript = meta.get("transcript")
    if kind == "latents":
        return cls.from_latents(tensor, transcript)
    if kind == "samples":
        return cls.from_clip(RawAudio(tensor, int(meta["sample_rate"])), transcript)
    if kind == "clip":
        return cls.from_clip(tensor.tobytes(), transcript)
    raise ValueError(f"it holds {kind!r}; known are 'clip', 'samples' and 'latents'")


def _digest(clip: bytes | RawAudio) -> bytes:
    if isinstance(clip, bytes):
        return blake2b(clip, digest_size=16).digest()
    return blake2b(clip.samples.tobytes(), digest_size=16, salt=clip.sample_rate.to_bytes(8, "big")).digest()
