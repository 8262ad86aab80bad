"""Audio files of every kind that clips may come in, made by PyAV."""

import io

import av
import numpy as np
from numpy.typing import NDArray

KINDS = {
    "wav": ("wav", "pcm_s16le", 44100),
    "wav8": ("wav", "pcm_s16le", 8000),
    "wavf": ("wav", "pcm_f32le", 96000),
    "mp3": ("mp3", "libmp3lame", 44100),
    "flac": ("flac", "flac", 22050),
    "ogg": ("ogg", "libopus", 48000),
    "m4a": ("ipod", "aac", 44100),
    "webm": ("webm", "libopus", 48000),
    "aac": ("adts", "aac", 16000),
}
LOSSLESS = ("wav", "wav8", "wavf", "flac")


def tone(rate: int, seconds: float, *, hertz: float = 440.0, level: float = 0.5) -> NDArray[np.float32]:
    """A sine `[samples]`."""
    time = np.arange(round(rate * seconds)) / rate
    return (level * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def encode(kind: str, channels: NDArray[np.float32]) -> bytes:
    """A file of `[channels, samples]` at the kind's rate."""
    container, codec, rate = KINDS[kind]
    layout = "mono" if len(channels) == 1 else "stereo"
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.layout = layout
        frame = av.AudioFrame.from_ndarray(channels, format="fltp", layout=layout)
        frame.sample_rate = rate
        fifo = av.AudioFifo()
        resampler = av.AudioResampler(format=stream.format.name, layout=layout, rate=rate)
        for converted in [*resampler.resample(frame), *resampler.resample(None)]:
            fifo.write(converted)
        size = stream.codec_context.frame_size or 1024
        while (piece := fifo.read(size) or fifo.read(0)) is not None:
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return out.getvalue()
