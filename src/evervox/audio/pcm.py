"""Samples to 16-bit PCM, and the WAV header of a stream whose length nobody knows yet."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_SIZE = 0xFFFFFFFF
BYTES_PER_SAMPLE = 2


def to_s16le(samples: NDArray[np.floating[Any]]) -> bytes:
    """Float samples in [-1, 1] as little-endian signed 16 bit; what is outside is clipped, NaN is silence."""
    scaled = np.nan_to_num(np.asarray(samples, dtype=np.float32), posinf=1.0, neginf=-1.0).clip(-1.0, 1.0) * np.float32(32767.0)
    return bytes(np.rint(scaled).astype("<i2").data)


def wav_header(sample_rate: int, num_samples: int | None = None) -> bytes:
    """The 44 bytes before mono 16-bit samples. Without a length both sizes read 0xFFFFFFFF, as streaming players expect."""
    data = UNKNOWN_SIZE if num_samples is None else num_samples * BYTES_PER_SAMPLE
    riff = UNKNOWN_SIZE if num_samples is None else data + 36
    form = struct.pack("<HHIIHH", 1, 1, sample_rate, sample_rate * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, 8 * BYTES_PER_SAMPLE)
    return b"RIFF" + struct.pack("<I", riff) + b"WAVEfmt \x10\0\0\0" + form + b"data" + struct.pack("<I", data)
