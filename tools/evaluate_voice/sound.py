"""Plain measures of a waveform."""

from __future__ import annotations

import numpy as np

SAMPLE_RATE = 16_000
QUIET = 0.01
WINDOW = SAMPLE_RATE // 50


def measures(samples: np.ndarray, words: int) -> dict[str, float]:
    """Seconds, words per second, RMS, peak, and the shares of clipped samples and of silent 20 ms windows."""
    seconds = len(samples) / SAMPLE_RATE
    whole = samples[: len(samples) // WINDOW * WINDOW].reshape(-1, WINDOW)
    rms = np.sqrt(np.square(whole).mean(1)) if len(whole) else np.zeros(1)
    return {
        "seconds": round(seconds, 3),
        "words_per_second": round(words / seconds, 3) if seconds else 0.0,
        "rms": round(float(np.sqrt(np.square(samples).mean())), 4) if seconds else 0.0,
        "peak": round(float(np.abs(samples).max()), 4) if seconds else 0.0,
        "clipped": round(float((np.abs(samples) >= 0.999).mean()), 6) if seconds else 0.0,
        "silent": round(float((rms < QUIET).mean()), 4),
    }


def silence(seconds: float = 3.0) -> np.ndarray:
    """A control that says nothing."""
    return np.zeros(int(seconds * SAMPLE_RATE), np.float32)


def noise(seconds: float = 3.0, rms: float = 0.1) -> np.ndarray:
    """A control that says nothing, loudly."""
    return (np.random.default_rng(0).standard_normal(int(seconds * SAMPLE_RATE)) * rms).astype(np.float32)
