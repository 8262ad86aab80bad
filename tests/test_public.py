"""The public surface: changing it means changing this list."""

import subprocess
import sys

import pytest

import evervox

PUBLIC = {
    "TTS",
    "AudioChunk",
    "ClipLatents",
    "Engine",
    "Finish",
    "RawAudio",
    "Settings",
    "Speech",
    "SpeechRequest",
    "SpeechStream",
    "Voice",
    "__version__",
}


def test_public_names() -> None:
    assert set(getattr(evervox, "__all__", ())) == PUBLIC


def test_every_public_name_is_there() -> None:
    assert all(hasattr(evervox, name) for name in PUBLIC)


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        evervox.nothing  # noqa: B018


def test_the_package_loads_light() -> None:
    script = "import time; t = time.perf_counter(); import evervox, sys; print(time.perf_counter() - t, *sys.modules)"
    answers = [subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True) for _ in range(3)]
    seconds, *modules = min((answer.stdout.split() for answer in answers), key=lambda words: float(words[0]))
    assert not {"torch", "numpy", "msgspec", "zmq", "pydantic"} & set(modules)
    assert float(seconds) < 0.15
