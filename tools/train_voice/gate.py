"""Writes what the codec makes of the teacher's speech, for `tools.evaluate_voice --wavs`.

The language model cannot be better than this: no work on it before the codec passes.
"""

from __future__ import annotations

import json
import wave
from typing import TYPE_CHECKING

import numpy as np
import torch
from tools.evaluate_voice import texts

from .codec import SAMPLE_RATE, load_codec
from .teacher import Teacher
from .tokenizer import build

if TYPE_CHECKING:
    from pathlib import Path


def write_reconstructions(codec_path: Path, folder: Path, count: int = 20) -> None:
    """`count` digit strings and sentences in the main voice, each through encoder and decoder."""
    folder.mkdir(parents=True, exist_ok=True)
    teacher, tokenizer, codec = Teacher(), build(), load_codec(codec_path)
    described = {}
    for kind, said in (("digits", texts.digit_strings(count, "gate")), ("sentences", texts.sentences(count, "gate"))):
        for number, text in enumerate(said):
            spoken = teacher.speak(text, tokenizer.encode(text).tokens, "heart", number)
            with torch.inference_mode():
                latents = codec.encode(torch.from_numpy(spoken.samples)[None, None], SAMPLE_RATE)  # type: ignore[operator]
                samples = codec.decode(latents)[0, 0].numpy()  # type: ignore[operator]
            name = f"{kind}_{number:03d}.wav"
            described[name] = {"kind": kind, "text": text}
            with wave.open(str(folder / name), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(SAMPLE_RATE)
                file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    (folder / "texts.json").write_text(json.dumps(described, indent=1) + "\n")
