from __future__ import annotations

import gc
import io
import os
from contextlib import closing

import av
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evervox.audio.encoders import FORMATS, AudioFormat, make_encoder
from evervox.audio.tempo import Tempo, links

RATES = (16000, 24000, 44100, 48000)


def tone(num: int, rate: int, hertz: float = 220.0) -> np.ndarray:
    return (0.5 * np.sin(np.arange(num) * 2 * np.pi * hertz / rate)).astype(np.float32)


def decode(data: bytes, fmt: AudioFormat, rate: int) -> tuple[np.ndarray, int]:
    """Mono float samples and their rate."""
    if fmt == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32767, rate
    with av.open(io.BytesIO(data)) as file:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [g.to_ndarray().reshape(-1) for f in file.decode(audio=0) for g in resampler.resample(f)]
        return np.concatenate(frames), file.streams.audio[0].rate


def encode(fmt: AudioFormat, samples: np.ndarray, rate: int, cuts: list[int], speed: float = 1.0) -> bytes:
    with closing(make_encoder(fmt, rate, speed=speed)) as encoder:
        parts = [encoder.push(part) for part in np.split(samples, sorted(c % (len(samples) + 1) for c in cuts))]
        return b"".join([*parts, encoder.finish()])


@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=12, deadline=None)
@given(
    rate=st.sampled_from(RATES),
    num=st.integers(3841, 60_000),
    cuts=st.lists(st.integers(0, 60_000), max_size=5),
    seed=st.integers(0, 9),
)
def test_the_file_lasts_as_long_as_its_samples(fmt: AudioFormat, rate: int, num: int, cuts: list[int], seed: int) -> None:
    samples = np.random.default_rng(seed).uniform(-0.4, 0.4, num).astype(np.float32)
    decoded, decoded_rate = decode(encode(fmt, samples, rate, cuts), fmt, rate)
    assert abs(len(decoded) / decoded_rate - num / rate) < 0.05


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rate", RATES)
def test_the_sound_survives(fmt: AudioFormat, rate: int) -> None:
    decoded, decoded_rate = decode(encode(fmt, tone(rate, rate), rate, []), fmt, rate)
    spectrum = np.abs(np.fft.rfft(decoded[decoded_rate // 4 : decoded_rate // 4 * 3]))
    assert abs(spectrum.argmax() * 2 - 220) <= 2
    assert 0.4 < np.abs(decoded).max() < 0.6


@pytest.mark.parametrize("fmt", FORMATS)
def test_how_samples_are_cut_makes_no_difference(fmt: AudioFormat) -> None:
    samples = tone(20_011, 16000)
    whole, _ = decode(encode(fmt, samples, 16000, []), fmt, 16000)
    cut, _ = decode(encode(fmt, samples, 16000, [1, 2, 2, 777, 9000, 9001]), fmt, 16000)
    assert len(whole) == len(cut)
    assert np.abs(whole - cut).max() < 2e-3


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("rate", RATES)
def test_the_first_160_ms_give_bytes_that_decode(fmt: AudioFormat, rate: int) -> None:
    num = rate * 16 // 100
    with closing(make_encoder(fmt, rate)) as encoder:
        early = encoder.push(tone(num, rate))
    decoded, decoded_rate = decode(early, fmt, rate)
    assert len(decoded) / decoded_rate > 0.05


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("speed", [0.25, 0.5, 0.77, 1.5, 3.0, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(fmt: AudioFormat, speed: float) -> None:
    decoded, rate = decode(encode(fmt, tone(48_001, 16000), 16000, [2560, 5120, 30_000], speed), fmt, 16000)
    assert abs(len(decoded) / rate - 48_001 / 16000 / speed) < 0.05
    middle = decoded[len(decoded) // 4 : len(decoded) // 4 * 3]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(spectrum.argmax() * rate / len(middle) - 220) < 6


@given(st.floats(0.25, 4.0))
def test_no_link_of_the_tempo_chain_drops_samples(speed: float) -> None:
    assert all(0.5 <= factor <= 2.0 for factor in links(speed))
    assert np.prod(links(speed)) == pytest.approx(speed)


@settings(max_examples=40, deadline=None)
@given(num=st.integers(0, 9000), speed=st.floats(0.25, 4.0), rate=st.sampled_from(RATES), cut=st.integers(1, 4000))
def test_tempo_gives_exactly_the_length_it_promises(num: int, speed: float, rate: int, cut: int) -> None:
    tempo = Tempo(rate, speed)
    samples = tone(num, rate)
    parts = [tempo.push(samples[i : i + cut]) for i in range(0, num, cut)]
    assert sum(map(len, [*parts, tempo.finish()])) == round(num / speed)


@pytest.mark.parametrize("speed", [0.0, 0.2, 4.1, float("nan")])
def test_tempo_names_its_bounds(speed: float) -> None:
    with pytest.raises(ValueError, match=r"speed: .* is outside \[0.25, 4.0\]"):
        Tempo(16000, speed)


@pytest.mark.parametrize("fmt", FORMATS)
def test_an_empty_utterance_is_an_empty_file(fmt: AudioFormat) -> None:
    with closing(make_encoder(fmt, 16000)) as encoder:
        assert isinstance(encoder.finish(), bytes)
        encoder.close()


def test_abandoned_encoders_leave_no_memory_behind() -> None:
    def abandon(times: int) -> None:
        for turn in range(times):
            with closing(make_encoder(FORMATS[turn % 4], 16000, speed=1.25)) as encoder:
                encoder.push(tone(2560, 16000))

    abandon(100)
    gc.collect()
    before = psutil.Process(os.getpid()).memory_info().rss
    abandon(400)
    gc.collect()
    assert psutil.Process(os.getpid()).memory_info().rss - before < 12 << 20
