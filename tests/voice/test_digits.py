"""A recogniser that knows only the ten digits hears what the shipped voice says, and hears nothing where nothing is said."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.voice.speaking import speak

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pocketsphinx = pytest.importorskip("pocketsphinx")

pytestmark = pytest.mark.timeout(600)  # a busy machine speaks slowly
RATE = 16_000
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GRAMMAR = f"#JSGF V1.0; grammar digits; public <digits> = ({' | '.join(DIGITS)})+;"
MAX_WER = 0.15  # of this recogniser, which also errs on the teacher; a better one is the measure of the voice
MIN_SHUFFLED_WER = 0.7
FRAME, QUIET, FLAT, MIN_VOICED = 512, 0.01, 0.3, 0.3


def strings() -> list[str]:
    """Twelve strings of three to six digits."""
    rng = Random("digits in the tests")
    return [" ".join(rng.choices(DIGITS, k=rng.randint(3, 6))) for _ in range(12)]


@pytest.fixture(scope="module")
def hear(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Samples to words; an utterance that the grammar cannot explain is an empty list."""
    grammar: Path = tmp_path_factory.mktemp("grammar") / "digits.jsgf"
    grammar.write_text(GRAMMAR)
    decoder = pocketsphinx.Decoder(jsgf=str(grammar), samprate=RATE, loglevel="FATAL")

    def listen(samples: NDArray[np.float32]) -> list[str]:
        quiet = np.zeros(RATE // 4, np.float32)
        if voiced_share(samples) < MIN_VOICED:
            return []
        noise = np.random.default_rng(0).normal(0, 1e-3, len(samples) + 2 * len(quiet))
        pcm = np.clip(np.concatenate((quiet, samples, quiet)) + noise, -1, 1)
        decoder.start_utt()
        decoder.process_raw((pcm * 32767).astype("<i2").tobytes(), full_utt=True)
        decoder.end_utt()
        best = decoder.hyp()
        return best.hypstr.split() if best else []

    return listen


def voiced_share(samples: NDArray[np.float32]) -> float:
    """Share of frames that are loud and not flat in spectrum: the recogniser itself forces digits onto loud noise."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(FRAME)))) + 1e-9
    flatness = np.exp(np.log(power).mean(1)) / power.mean(1)
    return float(((np.sqrt(np.square(frames).mean(1)) > QUIET) & (flatness < FLAT)).mean())


@cache
def spoken() -> tuple[NDArray[np.float32], ...]:
    """The voice says every string."""
    return tuple(speak(text, seed) for seed, text in enumerate(strings()))


def errors(said: list[str], heard: list[str]) -> int:
    """Edit distance in words."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(said, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def rate(said: list[list[str]], heard: list[list[str]]) -> float:
    """Word error rate."""
    return sum(map(errors, said, heard)) / sum(map(len, said))


def test_digits_are_heard(hear: Any) -> None:
    said, heard = [text.split() for text in strings()], [hear(samples) for samples in spoken()]
    assert rate(said, heard) <= MAX_WER, list(zip(said, heard, strict=True))
    assert rate([*said[1:], said[0]], heard) >= MIN_SHUFFLED_WER


@pytest.mark.parametrize("rms", [0.0, 0.02, 0.2])
def test_nothing_is_heard_in_silence_or_noise(hear: Any, rms: float) -> None:
    noise = np.random.default_rng(1).normal(0, 1, 3 * RATE).astype(np.float32) * rms
    assert hear(noise) == []


def test_each_utterance_ends_and_sounds_like_speech() -> None:
    for text, samples in zip(strings(), spoken(), strict=True):
        words, seconds = len(text.split()), len(samples) / RATE
        assert 0.2 * words < seconds < 0.9 * words + 0.6, text
        assert np.isfinite(samples).all()
        assert np.abs(samples).max() < 1
        assert 0.02 < np.sqrt(np.square(samples).mean()) < 0.3
