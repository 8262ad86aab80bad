from __future__ import annotations

import io
import wave

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evervox.audio.pcm import to_s16le, wav_header


def test_full_scale_and_beyond_are_clipped() -> None:
    samples = np.array([0, 1, -1, 1.5, -7, np.inf, -np.inf, np.nan], np.float32)
    assert np.frombuffer(to_s16le(samples), "<i2").tolist() == [0, 32767, -32767, 32767, -32767, 32767, -32767, 0]


@given(arrays(np.float32, st.integers(0, 200), elements=st.floats(-1, 1, width=32)))
def test_a_sample_is_off_by_half_a_step_at_most(samples: np.ndarray) -> None:
    back = np.frombuffer(to_s16le(samples), "<i2") / 32767
    assert np.abs(back - samples).max(initial=0) <= 0.5 / 32767 + 1e-7


def test_the_header_of_a_known_length_is_a_wave_file() -> None:
    data = to_s16le(np.linspace(-1, 1, 321, dtype=np.float32))
    with wave.open(io.BytesIO(wav_header(16000, 321) + data)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth(), file.getnframes()) == (16000, 1, 2, 321)
        assert file.readframes(321) == data


def test_a_stream_states_both_sizes_as_unknown() -> None:
    header = wav_header(48000)
    assert len(header) == 44
    assert header[4:8] == header[40:44] == b"\xff\xff\xff\xff"
