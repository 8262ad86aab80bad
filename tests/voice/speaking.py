"""Speech of the shipped voice for these tests: one function, so that what makes the sound can be exchanged."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import evervox
from evervox.request import SpeechRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOICE = Path(evervox.__file__).parent / "voice"


@cache
def _parts() -> tuple[Any, Any]:
    from evervox.conditioning.prepare import Preparer
    from evervox.conditioning.text import TextTokenizer
    from evervox.models.voxcpm.config import VoxConfig
    from evervox.runner.simple import SimpleGenerator

    return Preparer(VoxConfig.from_checkpoint(VOICE), TextTokenizer.from_checkpoint(VOICE)), SimpleGenerator.load(VOICE)


def speak(text: str, seed: int) -> NDArray[np.float32]:
    """Samples at 16 kHz with default settings."""
    preparer, generator = _parts()
    prepared = preparer.prepare(SpeechRequest(text=text, seed=seed))
    return np.concatenate([chunk.samples for chunk in generator.stream(prepared.prompt, prepared.sampling)])
