"""Samples in, bytes of an audio file out, while the file is being made. One object per stream; it owns its codec's state."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, get_args

import av
import numpy as np

from evervox.audio.pcm import to_s16le, wav_header
from evervox.audio.tempo import Tempo, frame_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from av.audio.codeccontext import AudioCodecContext
    from av.packet import Packet
    from numpy.typing import NDArray

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)


class Encoder(Protocol):
    """Push float32 mono samples, get bytes; `finish` gives the rest and frees everything. `close` frees without finishing."""

    sample_rate: int

    def push(self, samples: NDArray[np.float32]) -> bytes: ...

    def finish(self) -> bytes: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """How FFmpeg makes one format, tuned to give bytes early.

    `rates` are those that we encode at; any other is resampled to the first that is no lower. mp3 and AAC add about two frames of
    silence, which stays under 50 ms at 48 kHz only. `options` are the codec's, `container` the muxer's. AAC's other coder
    overshoots in the first frames.
    """

    muxer: str
    encoder: str
    sample_format: str
    rates: tuple[int, ...]
    bit_rate: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    container: dict[str, str] = field(default_factory=dict)


FLAC_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
CODECS: dict[AudioFormat, Codec] = {
    "mp3": Codec("mp3", "libmp3lame", "fltp", (48000,), 96_000, container={"write_xing": "0", "id3v2_version": "0"}),
    "opus": Codec("ogg", "libopus", "flt", (48000,), 64_000, container={"page_duration": "40000"}),
    "aac": Codec("adts", "aac", "fltp", (48000,), 96_000, {"aac_coder": "fast"}),
    "flac": Codec("flac", "flac", "s16", FLAC_RATES, None, {"compression_level": "2"}, {"metadata_header_padding": "0"}),
}
MEDIA_TYPES: dict[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


def make_encoder(fmt: AudioFormat, sample_rate: int, *, speed: float = 1.0) -> Encoder:
    """An encoder of `fmt` for mono samples at `sample_rate`; its own `sample_rate` is that of the file."""
    codec = CODECS.get(fmt)
    encoder: Encoder = PcmEncoder(sample_rate, header=fmt == "wav") if codec is None else CodecEncoder(codec, sample_rate)
    return encoder if speed == 1.0 else SpeedEncoder(encoder, Tempo(sample_rate, speed))


class PcmEncoder:
    """Little-endian signed 16 bit, with or without a WAV header in front."""

    def __init__(self, sample_rate: int, *, header: bool) -> None:
        self.sample_rate = sample_rate
        self._header = wav_header(sample_rate) if header else b""

    def push(self, samples: NDArray[np.float32]) -> bytes:
        header, self._header = self._header, b""
        return header + to_s16le(samples)

    def finish(self) -> bytes:
        return self.push(np.zeros(0, np.float32))

    def close(self) -> None:
        return


class CodecEncoder:
    """One of FFmpeg's codecs behind its muxer, written to memory."""

    def __init__(self, codec: Codec, sample_rate: int) -> None:
        self.sample_rate = next((rate for rate in codec.rates if rate >= sample_rate), codec.rates[-1])
        self._input_rate, self._taken = sample_rate, 0
        self._sink = _Sink()
        muxing = {**codec.container, "flush_packets": "1"}
        self._container = av.open(self._sink, "w", format=codec.muxer, container_options=muxing)
        self._stream = self._container.add_stream(codec.encoder, rate=self.sample_rate, options=codec.options)
        context = cast("AudioCodecContext", self._stream.codec_context)
        context.layout, context.format = "mono", codec.sample_format
        context.time_base = Fraction(1, self.sample_rate)
        if codec.bit_rate is not None:
            context.bit_rate = codec.bit_rate
        self._context = context
        self._open = True

    def push(self, samples: NDArray[np.float32]) -> bytes:
        if len(samples):
            frame = frame_of(samples, self._input_rate, self._taken)
            frame.time_base = Fraction(1, self._input_rate)
            self._taken += len(samples)
            self._mux(self._context.encode(frame))
        return self._sink.take()

    def finish(self) -> bytes:
        self._mux(self._context.encode(None))
        self.close()
        return self._sink.take()

    def close(self) -> None:
        """Free the codec and the muxer; any number of times."""
        if self._open:
            self._open = False
            self._container.close()

    def _mux(self, packets: Iterable[Packet[Any]]) -> None:
        for packet in packets:
            packet.stream = self._stream
            self._container.mux(packet)


class SpeedEncoder:
    """Another encoder, fed through the tempo filter."""

    def __init__(self, encoder: Encoder, tempo: Tempo) -> None:
        self.sample_rate = encoder.sample_rate
        self._encoder, self._tempo = encoder, tempo

    def push(self, samples: NDArray[np.float32]) -> bytes:
        return self._encoder.push(self._tempo.push(samples))

    def finish(self) -> bytes:
        return self._encoder.push(self._tempo.finish()) + self._encoder.finish()

    def close(self) -> None:
        self._tempo.close()
        self._encoder.close()


class _Sink(io.RawIOBase):
    """A file that cannot seek and keeps what was written until it is taken."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken
