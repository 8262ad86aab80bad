"""evervox: a speech server for the VoxCPM family that runs for weeks.

    from evervox import TTS
    with TTS() as tts:
        tts.speak("Hello.").save("hello.wav")

Every name is loaded when it is first used: `import evervox` alone loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from evervox.config import Settings
    from evervox.engine.client import Engine
    from evervox.engine.stream import SpeechStream
    from evervox.engine.tts import TTS, Speech
    from evervox.engine.voice import Voice
    from evervox.request import AudioChunk, ClipLatents, Finish, RawAudio, SpeechRequest

_HOMES = {
    "TTS": "engine.tts",
    "AudioChunk": "request",
    "ClipLatents": "request",
    "Engine": "engine.client",
    "Finish": "request",
    "RawAudio": "request",
    "Settings": "config",
    "Speech": "engine.tts",
    "SpeechRequest": "request",
    "SpeechStream": "engine.stream",
    "Voice": "engine.voice",
}

__all__ = [
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
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evervox' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"evervox.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
