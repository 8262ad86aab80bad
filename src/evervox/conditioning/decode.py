"""The bytes of an audio file to mono samples at a rate: wav, mp3, flac, ogg, m4a, webm and aac, by PyAV.

The container is told by its first bytes and named to the decoder, never guessed by it: formats that point at other files or
addresses (playlists, concatenations) are not reachable.
"""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import TYPE_CHECKING

import av
import numpy as np
from av.filter import Graph

from evervox.errors import BadRequest, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

KNOWN = "wav, mp3, flac, ogg, m4a or webm"
TAPS = 256
"""Of the resampling filter, at the lower of the two rates."""
MIN_RATE, MAX_RATE = 4_000, 384_000
LOST_SHARE, LOST_SECONDS = 0.02, 0.1
"""A file may hold this much less than its header says (padding, rounding); beyond both it has been cut."""
_UNKNOWN_SIZE = 0x7FFFF000  # what streaming writers put for "not known yet" is this or more, or 0
_FAILURES = (av.FFmpegError, ValueError, OverflowError, ZeroDivisionError)


def container_of(data: bytes) -> str | None:
    """The demuxer's name for a file that starts like this, or None."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[4:8] == b"ftyp":
        return "mov"
    if data[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return "aac"
    if data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1:2] >= b"\xe0"):
        return "mp3"
    return {b"fLaC": "flac", b"OggS": "ogg", b"\x1a\x45\xdf\xa3": "matroska"}.get(data[:4])


def decode(data: bytes, *, field: str, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    """Mono samples `[samples]`, the mean of the channels, and their rate.

    Decoding ends as soon as `max_seconds` are passed (`TooLarge`); a file that is not audio, damaged or cut is a `BadRequest`.
    """
    kind = container_of(data)
    if kind is None:
        raise BadRequest(f"is not a {KNOWN} file", field=field)
    if _ends_early(data, kind):
        raise BadRequest("the file ends early: its last part is missing", field=field)
    try:
        with av.open(io.BytesIO(data), format=kind) as container:
            if not container.streams.audio:
                raise BadRequest("the file holds no audio", field=field)
            return _read(container, field, max_seconds)
    except _FAILURES as error:
        raise BadRequest(f"cannot be decoded as {kind}; the file is damaged or cut ({error})", field=field) from None


def _read(container: av.container.InputContainer, field: str, max_seconds: float) -> tuple[NDArray[np.float32], int]:
    stream = container.streams.audio[0]
    rate = stream.codec_context.sample_rate
    if not MIN_RATE <= rate <= MAX_RATE:
        raise BadRequest(f"its sample rate must be {MIN_RATE} to {MAX_RATE} Hz, not {rate}", field=field)
    parts: list[NDArray[np.float32]] = []
    num_samples = 0
    for part in _frames(container, stream):
        parts.append(part)
        num_samples += len(part)
        if num_samples > max_seconds * rate:
            raise TooLarge(f"the clip is longer than {max_seconds:g} seconds", field=field)
    if not num_samples:
        raise BadRequest("the clip has no samples", field=field)
    _check_length(container, num_samples / rate, field)
    return np.concatenate(parts), rate


def _frames(container: av.container.InputContainer, stream: av.AudioStream) -> Iterator[NDArray[np.float32]]:
    """Each frame as the mean of its channels. A packet that does not decode is passed over; the length check judges the loss."""
    planar = av.AudioResampler(format="fltp")
    for packet in container.demux(stream):
        try:
            decoded = packet.decode()
        except av.InvalidDataError:
            continue
        for frame in decoded:
            for converted in planar.resample(frame):
                yield converted.to_ndarray().mean(axis=0, dtype=np.float32)


def _check_length(container: av.container.InputContainer, seconds: float, field: str) -> None:
    declared = (container.duration or 0) / av.time_base
    if declared - seconds > max(LOST_SECONDS, LOST_SHARE * declared):
        raise BadRequest(f"the file is damaged or ends early: it says {declared:.2f} s and holds {seconds:.2f} s", field=field)


def _ends_early(data: bytes, kind: str) -> bool:
    """Cut files whose demuxer would not say so."""
    if kind == "wav":
        size: int = struct.unpack("<I", data[4:8])[0]
        return 0 < size < _UNKNOWN_SIZE and size + 8 > len(data) + 1  # some writers leave out the last pad byte
    if kind == "ogg":
        page = data.rfind(b"OggS")
        segments = data[page + 26] if len(data) > page + 26 else 255
        end: int = page + 27 + segments + sum(data[page + 27 : page + 27 + segments])
        return end > len(data)
    return False


def resample(samples: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    """`[n]` at `rate` to `[ceil(n * target / rate)]` at `target`, band-limited within 5 % of the lower Nyquist rate."""
    if rate == target:
        return samples
    graph = Graph()
    source = graph.add("abuffer", f"sample_rate={rate}:sample_fmt=fltp:channel_layout=mono:time_base=1/{rate}")
    convert = graph.add("aresample", f"{target}:filter_size={TAPS}:cutoff=0.985")
    sink = graph.add("abuffersink")
    source.link_to(convert)
    convert.link_to(sink)
    graph.configure()
    longer = np.pad(samples, (0, 2 * TAPS * (1 + rate // target)))  # what is shorter than the filter would yield nothing
    frame = av.AudioFrame.from_ndarray(longer[None], format="fltp", layout="mono")
    frame.sample_rate, frame.time_base, frame.pts = rate, Fraction(1, rate), 0
    source.push(frame)
    source.push(None)
    return np.concatenate(list(_pull(sink)))[: -(-len(samples) * target // rate)]


def _pull(sink: av.filter.context.FilterContext) -> Iterator[NDArray[np.float32]]:
    while True:
        try:
            frame = sink.pull()
        except (av.BlockingIOError, av.EOFError):
            return
        assert isinstance(frame, av.AudioFrame)
        yield frame.to_ndarray()[0]
