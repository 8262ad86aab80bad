"""Files of every kind decode to the tone that went in; what is not audio, cut or too long is refused."""

import struct

import numpy as np
import pytest
from tests.conditioning.audio_made import KINDS, LOSSLESS, encode, tone

from evervox.conditioning.decode import container_of, decode, resample
from evervox.errors import BadRequest, TooLarge


def read(data: bytes, max_seconds: float = 60.0) -> tuple[np.ndarray, int]:
    return decode(data, field="reference", max_seconds=max_seconds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_channels", [1, 2])
def test_every_kind_at_its_rate(kind: str, num_channels: int) -> None:
    rate = KINDS[kind][2]
    left = tone(rate, 1.0)
    samples, got_rate = read(encode(kind, np.stack([left, 0.5 * left])[:num_channels]))
    expected = left if num_channels == 1 else 0.75 * left
    assert got_rate == rate
    assert samples.dtype == np.float32
    if kind in LOSSLESS:
        assert len(samples) == rate
        assert np.abs(samples - expected).max() < 1e-4
    else:  # a lossy codec may add padding and shift by its delay: compare loudness and pitch
        middle = samples[rate // 4 : 3 * rate // 4]
        assert len(samples) == pytest.approx(rate, rel=0.1)
        assert middle.std() == pytest.approx(expected.std(), rel=0.05)
        assert np.abs(np.fft.rfft(middle)).argmax() * 2 == pytest.approx(440, abs=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.25, 0.6, 0.9])
def test_a_cut_file_is_refused(kind: str, share: float) -> None:
    if kind in ("aac",):
        pytest.skip("ADTS states no length anywhere")
    data = encode(kind, tone(KINDS[kind][2], 3.0)[None])
    with pytest.raises(BadRequest, match="^reference: .*(cut|ends early)"):
        read(data[: int(len(data) * share)])


@pytest.mark.parametrize("kind", ["wav", "mp3", "flac", "ogg", "webm"])
def test_a_long_clip_is_refused_before_it_is_all_decoded(kind: str) -> None:
    data = encode(kind, tone(KINDS[kind][2], 10.0)[None])
    with pytest.raises(TooLarge, match="^reference: the clip is longer than 2 seconds"):
        read(data, max_seconds=2.0)


def test_a_ten_minute_clip_is_refused_after_a_minute_of_it() -> None:
    data = encode("wav8", tone(8000, 600.0)[None])
    with pytest.raises(TooLarge, match="^reference: the clip is longer than 60 seconds"):
        read(data)


def test_a_streamed_wav_states_no_length() -> None:
    data = bytearray(encode("wav", tone(44100, 1.0)[None]))
    data[4:8] = struct.pack("<I", 0xFFFFFFFF)
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert len(read(bytes(data))[0]) == 44100


@pytest.mark.parametrize(
    "data",
    [
        b"This is a text file that somebody named clip.wav.\n" * 20,
        b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"RIFF\x04\x00\x00\x00WAVE",
        b"fLaC" + b"\x00" * 64,
        b"OggS" + b"\x00" * 64,
        b"ID3" + b"\x00" * 300,
        b"\x1a\x45\xdf\xa3" + b"\x00" * 64,
        b"\x00\x00\x00\x18ftypM4A " + b"\x00" * 64,
        b"\x00",
        b"RI",
    ],
)
def test_what_is_not_audio_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="^reference: "):
        read(data)


def test_a_wav_without_samples_is_refused() -> None:
    header = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    with pytest.raises(BadRequest, match="^reference: the clip has no samples"):
        read(header + b"data" + struct.pack("<I", 0))


@pytest.mark.parametrize("rate", [100, 3999])
def test_an_odd_rate_is_refused(rate: int) -> None:
    header = b"RIFF" + struct.pack("<I", 236) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, rate * 2, 2, 16)
    with pytest.raises(BadRequest, match="sample rate must be 4000 to 384000 Hz"):
        read(header + b"data" + struct.pack("<I", 200) + b"\x00" * 200)


def test_the_container_is_told_by_its_first_bytes() -> None:
    kinds = {kind: container_of(encode(kind, tone(KINDS[kind][2], 0.2)[None])) for kind in KINDS}
    assert kinds == {
        "wav": "wav", "wav8": "wav", "wavf": "wav", "mp3": "mp3", "flac": "flac", "ogg": "ogg", "m4a": "mov",
        "webm": "matroska", "aac": "aac",
    }  # fmt: skip
    assert container_of(b"") is None


@pytest.mark.parametrize(("rate", "target"), [(44100, 16000), (48000, 16000), (8000, 16000), (22050, 44100), (96000, 44100)])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_resampling_keeps_a_tone(rate: int, target: int, share: float) -> None:
    hertz = share * min(rate, target) / 2
    got = resample(tone(rate, 0.5, hertz=hertz), rate, target)
    assert len(got) == -(-rate // 2 * target // rate)
    inside = slice(target // 20, -target // 20)
    assert np.abs(got - tone(target, 0.5, hertz=hertz)[: len(got)])[inside].max() < 1e-4


def test_resampling_removes_what_the_lower_rate_cannot_hold() -> None:
    got = resample(tone(44100, 0.5, hertz=8500), 44100, 16000)
    assert np.abs(got[800:-800]).max() < 1e-4


def test_resampling_to_the_same_rate_changes_nothing() -> None:
    samples = tone(16000, 0.1)
    assert resample(samples, 16000, 16000) is samples


@pytest.mark.parametrize("num_samples", [1, 7, 100, 1000])
@pytest.mark.parametrize(("rate", "target"), [(16000, 44100), (384000, 16000), (8000, 16000)])
def test_resampling_of_what_is_shorter_than_the_filter(num_samples: int, rate: int, target: int) -> None:
    assert len(resample(np.ones(num_samples, np.float32), rate, target)) == -(-num_samples * target // rate)
