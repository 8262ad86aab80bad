from __future__ import annotations

import io

import av
import numpy as np


def decode(data: bytes, fmt: str, rate: int = 16000) -> tuple[np.ndarray, float]:
    """Mono float samples of a file, and its length in seconds."""
    if fmt == "pcm":
        samples = np.frombuffer(data, "<i2").astype(np.float32) / 32767
        return samples, len(samples) / rate
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono")
        parts = [g.to_ndarray().reshape(-1) for f in file.decode(audio=0) for g in resampler.resample(f)]
        samples = np.concatenate(parts)
        return samples, len(samples) / file.streams.audio[0].rate


def pitch(samples: np.ndarray, seconds: float) -> float:
    """The strongest frequency, hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() / seconds)
