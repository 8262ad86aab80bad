"""A whole utterance as an audio file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evervox.audio.encoders import FORMATS, AudioFormat, make_encoder
from evervox.audio.pcm import to_s16le, wav_header
from evervox.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

SUFFIXES = {"ogg": "opus", "": "wav"}


def format_of(path: Path) -> AudioFormat:
    """By its suffix. Raises `BadRequest`."""
    suffix = path.suffix.lower()[1:]
    name = SUFFIXES.get(suffix, suffix)
    if name not in FORMATS:
        raise BadRequest(f"{path}: the suffix must be one of {', '.join(FORMATS)} or ogg", field="path")
    return name


def write_audio(path: Path, samples: NDArray[np.float32], sample_rate: int) -> None:
    """Write float32 mono samples; the file takes its name when it is whole."""
    data = encode(samples, sample_rate, format_of(path))
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def encode(samples: NDArray[np.float32], sample_rate: int, fmt: AudioFormat) -> bytes:
    """All bytes of the file."""
    if fmt == "wav":
        return wav_header(sample_rate, len(samples)) + to_s16le(samples)
    encoder = make_encoder(fmt, sample_rate)
    return encoder.push(samples) + encoder.finish()
