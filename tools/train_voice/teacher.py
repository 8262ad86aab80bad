"""The teacher: hibari-tts (Apache-2.0), asked also for the duration of every phoneme, which its network computes inside."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
from hibari import Hibari, dsp
from scipy.signal import resample_poly

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_RATE = 16_000
HOP = 320
PACE = 0.75
LEAD_IN, LEAD_OUT = 0.04, 0.10  # seconds kept before the first sound and after the last
AUDIBLE = 0.01  # of the peak
PEAK = 0.6
TEACHER_FRAME = 2 * dsp.HOP / dsp.SR  # seconds: durations count pairs of spectral frames
# Voice: (samples up, samples down) from the teacher's 24 kHz to 16 kHz; all but the first also shift pitch and formants.
VOICES = {"heart": (2, 3), "low": (20, 27), "lower": (5, 6), "high": (4, 7)}
EARLY = 3.5  # teacher frames by which a phoneme is heard before its durations say
DURATIONS = "/Clip_output_0"


@dataclass(frozen=True)
class Utterance:
    """Speech at 16 kHz with, for each frame of 20 ms, the phoneme heard and the slot of the text being spoken."""

    samples: NDArray[np.float32]
    phonemes: NDArray[np.int16]
    slots: NDArray[np.int16]


class Teacher:
    """Speaks words that it knows; raises ValueError where its words and the text's do not match one to one."""

    def __init__(self) -> None:
        self._voice = Hibari()
        model = onnx.load(self._voice.model_path)
        model.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.FLOAT, None))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "teacher.onnx"
            onnx.save(model, path)
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def speak(self, spoken: str, tokens: list[str], voice: str, seed: int) -> Utterance:
        """`spoken` is what to say, in words; `tokens` are the model's text tokens for the same words, a space before each."""
        up, down = VOICES[voice]
        stretch = (up / down) / (2 / 3)  # more samples out than 2:3 means a lower, slower voice
        phonemes = self._voice.g2p(spoken)
        feeds = {"ids": np.asarray([self._voice.ids(phonemes)]), "speed": np.asarray([PACE * stretch], np.float32)}
        *outputs, durations = self._session.run([*[o.name for o in self._session.get_outputs()[:6]], DURATIONS], feeds)
        wave = dsp.synth(*(output[0] for output in outputs), np.random.default_rng(seed))
        samples = resample_poly(wave.astype(np.float64), up, down)
        starts = (np.concatenate([[0], np.cumsum(np.ravel(durations))]) - EARLY) * TEACHER_FRAME * stretch
        begin, end = _audible(samples)
        samples = samples[begin:end]
        centres = ((np.arange(-(-len(samples) // HOP)) + 0.5) * HOP + begin) / SAMPLE_RATE
        heard = np.clip(np.searchsorted(starts, centres, side="right") - 1, 0, len(starts) - 2)
        kept = [character for character in phonemes if character in self._voice.vocab]
        ids = np.asarray([0, *(self._voice.vocab[character] for character in kept), 0])
        slots = np.asarray(_slots(kept, tokens))
        return Utterance(
            (samples * (PEAK / max(1e-6, np.abs(samples).max()))).astype(np.float32),
            ids[heard].astype(np.int16),
            slots[heard].astype(np.int16),
        )


def _audible(samples: NDArray[np.float64]) -> tuple[int, int]:
    """The span of samples to keep: from just before the first sound to a little after the last."""
    loud = np.flatnonzero(np.abs(samples) > AUDIBLE * np.abs(samples).max())
    begin, end = loud[0] - LEAD_IN * SAMPLE_RATE, loud[-1] + LEAD_OUT * SAMPLE_RATE
    return max(0, round(begin)), min(len(samples), round(end))


def _slots(phonemes: list[str], tokens: list[str]) -> list[int]:
    """For each phoneme, and the silence at either end, the index of the token that it says."""
    spaces = [index for index, token in enumerate(tokens) if token == "▁"]
    if phonemes.count(" ") + 1 != len(spaces):
        raise ValueError(f"{phonemes!r} and {tokens!r} differ in words")
    slots, word = [spaces[0]], 0
    for phoneme in phonemes:
        if phoneme == " ":
            word += 1
            slots.append(spaces[word])
        elif phoneme in ".,?!;:" and spaces[word] + 2 < len(tokens) and tokens[spaces[word] + 2] in ".,?!":
            slots.append(spaces[word] + 2)
        else:
            slots.append(spaces[word] + 1)
    return [*slots, len(tokens)]
